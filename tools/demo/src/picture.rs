//! What was learned, in the terminal: which arm the model sees where, and the points.

use std::io::IsTerminal as _;

use super::plan::Plan;
use super::spiral::Spiral;

const WIDTH: usize = 64;
const HEIGHT: usize = 26;
/// The plane from -EDGE to EDGE is shown.
pub(super) const EDGE: f64 = 1.15;
/// Background and foreground, of 256 colours, for each arm.
const COLOURS: [(u8, u8); 3] = [(24, 81), (94, 221), (22, 120)];
/// Without colours: the region, and a point in it.
const LETTERS: [(char, char); 3] = [(' ', 'o'), ('.', '+'), (':', 'x')];

/// The arm that the model decides for at each point of the [`grid`].
pub(super) struct Regions(pub(super) Vec<u32>);

/// How many columns and rows the grid has: finer than the terminal, for the page.
pub(super) const GRID: (usize, usize) = (2 * WIDTH, 4 * HEIGHT);

/// The points at which the model is asked, row by row, from the top.
pub(super) fn grid() -> Vec<[f64; 2]> {
    let (columns, rows) = GRID;
    let at = |index: usize, of: usize| -EDGE + 2.0 * EDGE * (index as f64 + 0.5) / of as f64;
    (0..rows)
        .flat_map(|row| (0..columns).map(move |column| (row, column)))
        .map(|(row, column)| [at(column, columns), -at(row, rows)])
        .collect()
}

/// Draws the regions, and the points that were learned from.
pub(super) fn draw(plan: &Plan, regions: &Regions) -> String {
    let coloured = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let points = place(&Spiral::new(plan.seed));
    let mut text = String::new();
    for row in 0..HEIGHT {
        for column in 0..WIDTH {
            let index = row * WIDTH + column;
            // One of the cells in the middle.
            let at = (4 * row + 2) * GRID.0 + 2 * column + 1;
            let region = regions.0.get(at).copied().unwrap_or(0) as usize % 3;
            let point = points[index].map(|arm| arm as usize % 3);
            if coloured {
                let (background, _) = COLOURS[region];
                let (_, ink) = COLOURS[point.unwrap_or(region)];
                let dot = if point.is_some() { '•' } else { ' ' };
                text += &format!("\x1b[48;5;{background}m\x1b[38;5;{ink}m{dot}");
            } else {
                let (plain, _) = LETTERS[region];
                text.push(point.map_or(plain, |arm| LETTERS[arm].1));
            }
        }
        text += if coloured { "\x1b[0m\n" } else { "\n" };
    }
    text
}

/// Which arm the last point lies on that falls into each cell.
fn place(spiral: &Spiral) -> Vec<Option<u32>> {
    let mut cells = vec![None; WIDTH * HEIGHT];
    // Every fourth is enough to see the arms, and leaves the regions visible.
    let points = spiral.points.iter().zip(&spiral.arms).step_by(4);
    for ([x, y], arm) in points {
        let cell = |at: f64, of: usize| ((at + EDGE) / (2.0 * EDGE) * of as f64) as usize;
        let (column, row) = (cell(*x, WIDTH), cell(-*y, HEIGHT));
        if column < WIDTH && row < HEIGHT {
            cells[row * WIDTH + column] = Some(*arm);
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_point_of_the_spiral_is_in_the_picture() {
        let spiral = Spiral::new(7);
        assert!(spiral.points.iter().flatten().all(|at| at.abs() < EDGE));
        assert_eq!(grid().len(), GRID.0 * GRID.1);
    }
}
