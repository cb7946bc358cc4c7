//! Medians and ratios of all rounds.

use std::fmt;

use crate::pair::{Outcome, Pair};
use crate::peers::Peer;
use crate::results::{Measure, digits};
use crate::transport::Transport;

/// What the rounds say.
#[derive(Debug)]
pub struct Summary<'a> {
    pub rows: Vec<Row<'a>>,
    pairs: &'a [Pair],
}

/// All rounds of one peer.
#[derive(Debug)]
pub struct Row<'a> {
    pub peer: &'a Peer,
    pairs: Vec<&'a Pair>,
}

/// Several figures of the same thing.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Spread {
    pub median: f64,
    pub least: f64,
    pub most: f64,
}

impl Spread {
    fn of(values: impl Iterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let (&least, &most) = (values.first()?, values.last()?);
        let half = values.len() / 2;
        let median = match values.len() % 2 {
            0 => (values[half - 1] + values[half]) / 2.0,
            _ => values[half],
        };
        Some(Self {
            median,
            least,
            most,
        })
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [median, least, most] = [self.median, self.least, self.most].map(digits);
        write!(f, "**{median}** ({least}..{most})")
    }
}

impl<'a> Summary<'a> {
    pub fn new(peers: &[&'a Peer], pairs: &'a [Pair]) -> Self {
        let row = |peer: &&'a Peer| Row {
            peer,
            pairs: pairs.iter().filter(|pair| pair.is_of(peer)).collect(),
        };
        Self {
            rows: peers.iter().map(row).collect(),
            pairs,
        }
    }

    /// What farref did over one transport, beside whichever peer.
    pub fn farref(&self, transport: Transport, measure: Measure) -> Option<Spread> {
        let beside = |pair: &&Pair| {
            let row = self.rows.iter().find(|row| pair.is_of(row.peer));
            row.is_some_and(|row| row.peer.beside == transport)
        };
        let pairs = self.pairs.iter().filter(beside);
        Spread::of(pairs.filter_map(|pair| pair.farref.results()?.get(measure)))
    }
}

impl Row<'_> {
    /// farref's figure divided by the peer's, each of one pair.
    pub fn ratio(&self, measure: Measure) -> Option<Spread> {
        let ratio = |pair: &&Pair| {
            let [farref, beside] = [&pair.farref, &pair.beside];
            Some(farref.results()?.get(measure)? / beside.results()?.get(measure)?)
        };
        Spread::of(self.pairs.iter().filter_map(ratio))
    }

    /// The peer's own figure.
    pub fn absolute(&self, measure: Measure) -> Option<Spread> {
        let figure = |pair: &&Pair| pair.beside.results()?.get(measure);
        Spread::of(self.pairs.iter().filter_map(figure))
    }

    /// The version that the peer said it has.
    pub fn version(&self) -> Option<&str> {
        let measured = self.pairs.iter().find_map(|pair| pair.beside.results())?;
        Some(measured.version.as_str()).filter(|version| !version.is_empty())
    }

    /// Why there is no figure at all.
    pub fn why_not(&self) -> Option<&str> {
        if self
            .pairs
            .iter()
            .any(|pair| pair.beside.results().is_some())
        {
            return None;
        }
        self.pairs.iter().find_map(|pair| match &pair.beside {
            Outcome::Failed(why) => Some(why.as_str()),
            Outcome::Measured(_) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_between_the_two_in_the_middle() {
        let spread = Spread::of([4.0, 1.0, f64::NAN, 2.0, 3.0].into_iter());
        let expected = Spread {
            median: 2.5,
            least: 1.0,
            most: 4.0,
        };
        assert_eq!(spread, Some(expected));
        assert_eq!(Spread::of([].into_iter()), None);
    }
}
