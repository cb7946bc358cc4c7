//! One figure, with the limits that it is held against.

use serde::Serialize;

use super::super::form::{Direction, Form};
use super::super::samples::Times;

#[derive(Debug, Serialize)]
pub(crate) struct Measurement {
    pub(super) name: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) in_flight: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bytes: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) form: Option<Form>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) direction: Option<Direction>,
    /// How many references live meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) references: Option<usize>,
    /// How wide a layer is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) width: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) workers: Option<u32>,
    pub(super) unit: &'static str,
    /// The median of times, or a rate.
    pub(super) value: f64,
    /// Percentiles in microseconds, where each one was timed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) times: Option<Times>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) limits: Vec<Limit>,
}

/// Something else that was measured in the same run, or a number that is given.
#[derive(Debug, Serialize)]
pub(super) struct Limit {
    pub(super) name: &'static str,
    /// In the unit of what is held against it.
    pub(super) value: f64,
    /// How many times the limit the figure is.
    pub(super) ratio: f64,
    pub(super) better: Better,
    /// What the ratio should not be above or below.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) budget: Option<f64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Better {
    Lower,
    Higher,
}

impl Measurement {
    /// Of something that takes time.
    pub(crate) fn times(name: &'static str, times: Times) -> Self {
        Self {
            times: Some(times),
            ..Self::rate(name, "us", times.p50)
        }
    }

    /// Of something that moves bytes.
    pub(crate) fn speed(name: &'static str, speed: f64, times: Times) -> Self {
        Self {
            times: Some(times),
            ..Self::rate(name, "GB/s", speed)
        }
    }

    /// Of anything that is one number.
    pub(crate) fn rate(name: &'static str, unit: &'static str, value: f64) -> Self {
        Self {
            name,
            in_flight: None,
            bytes: None,
            form: None,
            direction: None,
            references: None,
            width: None,
            workers: None,
            unit,
            value,
            times: None,
            limits: Vec::new(),
        }
    }

    pub(crate) fn in_flight(mut self, calls: usize) -> Self {
        self.in_flight = Some(calls);
        self
    }

    pub(crate) fn bytes(mut self, bytes: usize) -> Self {
        self.bytes = Some(bytes);
        self
    }

    pub(crate) fn form(mut self, form: Form) -> Self {
        self.form = Some(form);
        self
    }

    pub(crate) fn direction(mut self, direction: Direction) -> Self {
        self.direction = Some(direction);
        self
    }

    pub(crate) fn references(mut self, references: usize) -> Self {
        self.references = Some(references);
        self
    }

    pub(crate) fn layer(mut self, width: usize) -> Self {
        self.width = Some(width);
        self
    }

    pub(crate) fn workers(mut self, workers: u32) -> Self {
        self.workers = Some(workers);
        self
    }

    /// Less is better; the budget is the highest ratio that will do.
    pub(crate) fn at_most(self, name: &'static str, value: f64, budget: Option<f64>) -> Self {
        self.against(name, value, Better::Lower, budget)
    }

    /// More is better; the budget is the lowest ratio that will do.
    pub(crate) fn at_least(self, name: &'static str, value: f64, budget: Option<f64>) -> Self {
        self.against(name, value, Better::Higher, budget)
    }

    fn against(
        mut self,
        name: &'static str,
        value: f64,
        better: Better,
        budget: Option<f64>,
    ) -> Self {
        self.limits.push(Limit {
            name,
            value,
            ratio: self.value / value,
            better,
            budget,
        });
        self
    }
}

impl Limit {
    /// Whether the budget is kept, if there is one.
    pub(super) fn kept(&self) -> Option<bool> {
        self.budget.map(|budget| match self.better {
            Better::Lower => self.ratio <= budget,
            Better::Higher => self.ratio >= budget,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_kept_from_its_own_side() {
        let kept = |measured: Measurement| measured.limits[0].kept();
        let one = || Measurement::rate("one", "us", 1.0);
        assert_eq!(kept(one().at_most("limit", 2.0, Some(0.5))), Some(true));
        assert_eq!(kept(one().at_most("limit", 2.0, Some(0.4))), Some(false));
        assert_eq!(kept(one().at_least("limit", 2.0, Some(0.5))), Some(true));
        assert_eq!(kept(one().at_least("limit", 2.0, Some(0.6))), Some(false));
        assert_eq!(kept(one().at_most("limit", 2.0, None)), None);
    }
}
