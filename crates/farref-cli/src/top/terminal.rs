//! Takes the terminal over and gives it back, whatever happens: at the end, after an error, in a panic.

use std::io;

use ratatui::DefaultTerminal;

use super::screen;
use super::state::TopState;

/// The terminal while it is ours.
pub(super) struct Screen {
    terminal: DefaultTerminal,
}

impl Screen {
    pub(super) fn open() -> io::Result<Self> {
        // Restores the terminal in a panic as well.
        match ratatui::try_init() {
            Ok(terminal) => Ok(Self { terminal }),
            Err(error) => {
                // It may be taken over half.
                let _ = ratatui::try_restore();
                Err(error)
            }
        }
    }

    pub(super) fn draw(&mut self, state: &mut TopState) -> io::Result<()> {
        self.terminal.draw(|frame| {
            let area = frame.area();
            state.resize(area.height);
            screen::render(state, area, frame.buffer_mut());
        })?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Nothing could be done about it.
        let _ = ratatui::try_restore();
    }
}
