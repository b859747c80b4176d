//! Another machine, for an estimate of what a job would take there.

use clap::Args;
use sparktune_plan::elsewhere::Elsewhere;

/// Another machine, as a person describes it.
#[derive(Debug, Args)]
pub(crate) struct ElsewhereFlags {
    /// Also say what the job would take on another machine that trains this many tokens a second; an estimate
    #[arg(long = "elsewhere-rate", value_name = "TOKENS/S", value_parser = positive)]
    rate: Option<f64>,
    /// The price of an hour on that machine, in any currency
    #[arg(long = "elsewhere-price", value_name = "PRICE", value_parser = positive, requires = "rate")]
    price: Option<f64>,
}

impl ElsewhereFlags {
    /// Returns the machine, if there is one.
    pub(crate) fn elsewhere(&self) -> Option<Elsewhere> {
        Some(Elsewhere { tokens_per_s: self.rate?, price_per_hour: self.price })
    }
}

fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| "expected a number above 0".to_owned())
}
