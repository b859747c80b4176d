//! What the same job would take on another machine, from a speed and a price that a person gives. Nothing of
//! it was measured here, so it is always called an estimate.

use serde::Serialize;
use sparktune_base::units::{duration, tokens_per_s};

use crate::plan::Time;

/// Another machine, as a person describes it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Elsewhere {
    /// The speed of training there, in tokens per second.
    pub tokens_per_s: f64,
    /// The price of an hour there, in any currency.
    pub price_per_hour: Option<f64>,
}

/// The time and the price of a job there.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Job {
    /// The speed that was given.
    pub tokens_per_s: f64,
    /// The duration in seconds, without transfers and setting up.
    pub seconds: f64,
    /// The price, in the currency of the hourly one.
    pub price: Option<f64>,
    /// The price of an hour that was given.
    pub price_per_hour: Option<f64>,
}

impl Elsewhere {
    /// Returns what a planned run would take there: as long as here, times the ratio of the speeds. Without a
    /// speed here only the training itself is counted.
    pub fn planned(&self, time: &Time) -> Job {
        let here = time.total_s().zip(time.tokens_per_s);
        let tokens = time.tokens_per_step as f64 * time.steps as f64;
        self.job(here.map_or(tokens, |(seconds, rate)| seconds * rate))
    }

    /// Returns what a run that took `seconds` at this speed would take there.
    pub fn measured(&self, seconds: f64, tokens_per_s: f64) -> Job {
        self.job(seconds * tokens_per_s)
    }

    fn job(&self, tokens: f64) -> Job {
        let Self { tokens_per_s, price_per_hour } = *self;
        let seconds = tokens / tokens_per_s;
        let price = price_per_hour.map(|price| price * seconds / 3600.0);
        Job { tokens_per_s, seconds, price, price_per_hour }
    }
}

impl Job {
    /// Describes how the figures came about.
    pub fn basis_in_words(&self) -> String {
        let price = match (self.price, self.price_per_hour) {
            (Some(price), Some(hour)) => format!(" and {price:.2} at {hour:.2} an hour"),
            _ => String::new(),
        };
        format!(
            "at {} tokens/s{price}: an estimate from the figures that you gave, without transfers and setting up",
            tokens_per_s(self.tokens_per_s)
        )
    }

    /// Returns the line of a plan.
    pub fn line(&self) -> String {
        format!("elsewhere {} {}\n", duration(self.seconds), self.basis_in_words())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::RateBasis;

    fn time(tokens_per_s: Option<f64>) -> Time {
        Time {
            tokens_per_epoch: 100_000,
            tokens_per_step: 1000,
            steps_per_epoch: 100,
            steps: 300,
            flops_per_token: 1e6,
            dropout_s_per_token: 0.0,
            device: "cpu-2".into(),
            tokens_per_s,
            start_s: None,
            train_s: tokens_per_s.map(|rate| 300_000.0 / rate),
            eval_s: tokens_per_s.map(|_| 60.0),
            mtp_s: None,
            finish_s: None,
            basis: RateBasis::Estimate,
            formula: String::new(),
        }
    }

    #[test]
    fn a_job_elsewhere_is_as_much_faster_as_its_speed_and_is_called_an_estimate() {
        let there = Elsewhere { tokens_per_s: 1000.0, price_per_hour: Some(3.6) };
        // 3,000 s of training and 60 s of evaluations at 100 tokens/s.
        let job = there.planned(&time(Some(100.0)));
        assert!((job.seconds - 306.0).abs() < 1e-9 && (job.price.unwrap() - 0.306).abs() < 1e-9);
        assert_eq!(
            job.line(),
            "elsewhere 5 min 06 s at 1,000 tokens/s and 0.31 at 3.60 an hour: an estimate from the figures that \
             you gave, without transfers and setting up\n"
        );
        let free = Elsewhere { price_per_hour: None, ..there };
        assert!((free.planned(&time(None)).seconds - 300.0).abs() < 1e-9, "the training alone");
        assert!(!free.planned(&time(None)).line().contains("hour"));
        assert_eq!(there.measured(3060.0, 100.0), job);
    }
}
