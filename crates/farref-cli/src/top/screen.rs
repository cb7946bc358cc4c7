//! Draws the state, and nothing but it.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Widget};

use super::state::{Tab, TopState};
use crate::view::quantity::{count, many};
use crate::view::tables::sum;
use crate::view::text::{Cut, fit, width};

/// Rows above and below the tables.
const TOP: u16 = 3;
const BOTTOM: u16 = 2;

const KEYS: [(&str, &str); 12] = [
    ("q, Ctrl-C", "quit"),
    ("Tab, 1 to 4", "another tab"),
    ("arrows, j k", "up and down"),
    ("PageUp, PageDown", "a page up and down"),
    ("Home, End", "the first and the last row"),
    ("/", "who keeps a value alive: part of an id, a type,"),
    ("", "an owner, a holder or a source line"),
    ("Enter", "the references of the chosen group"),
    ("Esc", "back to the groups, or quit"),
    ("g", "group references by something else"),
    ("s", "sort by the next column"),
    ("space", "pause and go on"),
];

pub(super) fn render(state: &TopState, area: Rect, buffer: &mut Buffer) {
    let row = |at: u16| Rect {
        y: area.y + at,
        height: 1,
        ..area
    };
    if area.height > TOP + BOTTOM {
        title(state).render(row(0), buffer);
        tabs(state).render(row(1), buffer);
        let body = Rect {
            y: area.y + TOP,
            height: area.height - TOP - BOTTOM,
            ..area
        };
        tables(state, body, buffer);
        status(state, area).render(row(area.height - 2), buffer);
        hints(state, area).render(row(area.height - 1), buffer);
    } else if area.height > 0 {
        Line::raw("the terminal is too low").render(row(0), buffer);
    }
    if state.help {
        help(area, buffer);
    }
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

fn dim() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

fn title(state: &TopState) -> Line<'_> {
    let answers = || state.seen.iter().filter_map(|one| one.answer());
    let calls = answers().map(|snapshot| sum(snapshot, |peer| peer.calls_made as u64));
    let calls = calls.fold(0, u64::saturating_add);
    let numbers = format!(
        "{}  {} in flight  {} calls/s",
        many(state.seen.len(), "worker"),
        many(usize::try_from(calls).unwrap_or(usize::MAX), "call"),
        count(state.rates.calls().round()),
    );
    Line::from(vec![
        Span::styled(" farref top ", bold()),
        Span::raw(" "),
        Span::raw(&state.place),
        Span::raw("  "),
        Span::raw(numbers),
        Span::styled(if state.paused { "  PAUSED" } else { "" }, bold()),
    ])
}

fn tabs(state: &TopState) -> Line<'static> {
    let mut spans = Vec::new();
    for (index, tab) in Tab::ALL.into_iter().enumerate() {
        let style = match tab == state.tab {
            true => bold().add_modifier(Modifier::REVERSED),
            false => Style::new(),
        };
        spans.push(Span::raw(" "));
        spans.push(Span::styled(
            format!(" {} {} ", index + 1, tab.name()),
            style,
        ));
    }
    Line::from(spans)
}

fn status(state: &TopState, area: Rect) -> Line<'static> {
    let columns = usize::from(area.width).saturating_sub(1);
    match state.problem() {
        Some(problem) => {
            let text = fit(&problem, columns, Cut::Back);
            Line::styled(format!(" {text}"), Style::new().fg(Color::Red))
        }
        None if state.seen.is_empty() => Line::raw(" looking .."),
        None => Line::default(),
    }
}

fn hints(state: &TopState, area: Rect) -> Line<'static> {
    let columns = usize::from(area.width).saturating_sub(2);
    if let Some(text) = &state.typing {
        let text = fit(text, columns.saturating_sub(1), Cut::Front);
        return Line::styled(format!(" /{text}▏"), bold());
    }
    let sorted = state.sorted_by().map(|column| format!(" ({column})"));
    let hints = format!(
        " q quit  Tab next  / who keeps alive  s sort{}  space pause  ? help",
        sorted.unwrap_or_default()
    );
    Line::styled(fit(&hints, columns, Cut::Back), dim())
}

/// A line of the tables.
struct Row {
    text: String,
    style: Style,
    section: usize,
}

fn tables(state: &TopState, area: Rect, buffer: &mut Buffer) {
    let sections = state.sections();
    let columns = usize::from(area.width).saturating_sub(3);
    let mut rows: Vec<Row> = Vec::new();
    let mut headers: Vec<String> = Vec::new();
    let (mut counted, mut chosen_at) = (0, 0);
    for (section, shown) in sections.iter().enumerate() {
        let fitted = shown.table.fit(columns);
        let line = |text, style| Row {
            text,
            style,
            section,
        };
        if section > 0 {
            rows.push(line(String::new(), Style::new()));
        }
        rows.push(line(fit(&shown.title, columns, Cut::Back), bold()));
        rows.push(line(format!("  {}", fitted.header), dim()));
        headers.push(format!("  {}", fitted.header));
        for row in fitted.rows {
            let is_chosen = counted == state.chosen();
            let style = match is_chosen {
                true => Style::new().add_modifier(Modifier::REVERSED),
                false => Style::new(),
            };
            rows.push(line(format!("  {row}"), style));
            if is_chosen {
                chosen_at = rows.len() - 1;
            }
            counted += 1;
        }
    }
    // Rows may have gone since one was chosen.
    if counted <= state.chosen() {
        chosen_at = rows.len().saturating_sub(1);
    }
    let height = usize::from(area.height);
    let offset = (chosen_at + 1).saturating_sub(height);
    for (at, row) in rows.iter().skip(offset).take(height).enumerate() {
        // The header stays when what belongs to it is scrolled away.
        let (text, style) = match at == 0 && offset > 0 {
            true => (&headers[row.section], dim()),
            false => (&row.text, row.style),
        };
        let line = Rect {
            y: area.y + at as u16,
            height: 1,
            ..area
        };
        Line::styled(format!(" {text}"), style).render(line, buffer);
    }
}

fn help(area: Rect, buffer: &mut Buffer) {
    let lines: Vec<Line<'_>> = KEYS
        .into_iter()
        .map(|(key, what)| {
            Line::from(vec![
                Span::styled(format!(" {key:17}"), bold()),
                Span::raw(what),
            ])
        })
        .collect();
    let widest = KEYS.iter().map(|(_, what)| width(what)).max().unwrap_or(0) + 21;
    let wanted = Rect {
        width: widest as u16,
        height: lines.len() as u16 + 2,
        ..area
    };
    let size = wanted.intersection(area);
    let popup = Rect {
        x: area.x + (area.width - size.width) / 2,
        y: area.y + (area.height - size.height) / 2,
        ..size
    };
    Clear.render(popup, buffer);
    let block = Block::bordered().title(" keys ");
    Paragraph::new(lines).block(block).render(popup, buffer);
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

    use super::super::fetch::Update;
    use super::*;
    use crate::view::samples;

    fn state(keys: &str) -> TopState {
        let mut state = TopState::new("127.0.0.1:29500");
        state.update(Update::Seen(samples::group()));
        state.update(Update::Seen(samples::later(samples::group())));
        press(&mut state, keys);
        state
    }

    fn press(state: &mut TopState, keys: &str) {
        for key in keys.chars() {
            let code = match key {
                '\n' => KeyCode::Enter,
                '\t' => KeyCode::Tab,
                '↓' => KeyCode::Down,
                '⤓' => KeyCode::End,
                other => KeyCode::Char(other),
            };
            state.key(KeyEvent::new(code, KeyModifiers::NONE));
        }
    }

    fn draw(state: &TopState, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        let draw = |frame: &mut ratatui::Frame<'_>| render(state, frame.area(), frame.buffer_mut());
        let buffer = terminal.draw(draw).expect("drawn").buffer;
        let rows = (0..height).map(|y| {
            let row: String = (0..width).map(|x| buffer[(x, y)].symbol()).collect();
            row.trim_end().to_owned()
        });
        rows.collect()
    }

    #[track_caller]
    fn assert_shows(screen: &[String], expected: &[&str]) {
        let all = screen.join("\n");
        for text in expected {
            assert!(all.contains(text), "{text:?} is not on\n{all}");
        }
    }

    #[test]
    fn the_workers_and_how_fast_they_go_are_on_the_first_screen() {
        for (width, height) in [(80, 24), (120, 40)] {
            let screen = draw(&state(""), width, height);
            assert_shows(
                &screen,
                &["127.0.0.1:29500", "parameters", "trainer0", "trainer1"],
            );
            assert_shows(
                &screen,
                &["calls/s", "1500", "250", "3 MiB", "alive", "4500 calls/s"],
            );
            assert_shows(
                &screen,
                &["1 workers", "2 calls", "3 references", "4 links", "q quit"],
            );
            assert!(!screen.join("").contains('…'));
        }
        assert_shows(
            &draw(&state(""), 120, 40),
            &["rank", "life", "ctxs", "queued"],
        );
    }

    #[test]
    fn the_other_tabs_show_calls_references_and_links() {
        for (width, height) in [(80, 24), (120, 40)] {
            let screen = draw(&state("2"), width, height);
            assert_shows(
                &screen,
                &[
                    "forward_and_keep",
                    "unanswered",
                    "3 calls running",
                    "its turn",
                ],
            );
            let screen = draw(&state("3"), width, height);
            assert_shows(
                &screen,
                &["43 references", "Vec<Tensor>", "trainer0, trainer1"],
            );
            assert_shows(&screen, &["src/main.rs:42", "2m 00s"]);
            let screen = draw(&state("\t\t\t"), width, height);
            assert_shows(&screen, &["held back", "tcp", "121 KiB"]);
        }
    }

    #[test]
    fn a_filter_shows_every_holder_and_where_it_got_the_reference() {
        for keys in ["/r1@w0\n", "3\n"] {
            let screen = draw(&state(keys), 80, 24);
            assert_shows(&screen, &["who keeps them alive", "r1@w0", "parameters"]);
            assert_shows(
                &screen,
                &["src/main.rs:41", "src/main.rs:42", "1m 00s", "2m 00s"],
            );
        }
        assert_shows(&draw(&state("/tens"), 80, 24), &[" /tens▏", "42 of 43"]);
    }

    #[test]
    fn scrolling_keeps_the_header_and_the_chosen_row_on_the_screen() {
        let screen = draw(&state("/vec\n⤓"), 80, 24);
        assert_shows(&screen[3..4], &["held by", "got at"]);
        assert_shows(&screen[21..22], &["trainer1"]);
    }

    #[test]
    fn who_does_not_answer_is_told_of_with_the_reason() {
        let mut state = state("");
        let mut seen = samples::group();
        seen[2].snapshot = Err("it has ended or been killed".to_owned());
        state.update(Update::Seen(seen));
        let screen = draw(&state, 80, 24);
        assert_shows(
            &screen,
            &["no answer from trainer1: it has ended or been killed"],
        );
        state.update(Update::Lost("nobody can be reached".to_owned()));
        assert_shows(
            &draw(&state, 80, 24),
            &["trying again: nobody can be reached", "trainer0"],
        );
    }

    #[test]
    fn help_names_every_key_and_the_next_key_closes_it() {
        let mut state = state("?");
        let screen = draw(&state, 80, 24);
        for (key, what) in KEYS {
            assert_shows(&screen, &[key, what]);
        }
        press(&mut state, "x");
        assert!(!state.help);
    }

    #[test]
    fn no_size_of_the_terminal_is_too_small_to_draw() {
        for keys in ["", "2", "3", "4", "/tensor", "3\n⤓", "?", "s", " "] {
            let state = state(keys);
            for (width, height) in [(1, 1), (3, 5), (10, 6), (20, 8), (40, 12), (300, 100)] {
                draw(&state, width, height);
            }
            draw(&TopState::new("nowhere"), 80, 24);
        }
    }
}
