//! Start time: from starting the program to the end of its shortest answer.

use std::process::{Command, Stdio};
use std::time::Instant;

use crate::context::Context;
use crate::error::BenchError;
use crate::median::median;
use crate::row::{Row, Target};

pub(crate) fn measure(context: &Context) -> Result<Vec<Row>, BenchError> {
    let (program, starts) = (&context.options.program, context.size.starts);
    let mut times = Vec::with_capacity(starts);
    for _ in 0..starts {
        let started = Instant::now();
        let ended = Command::new(program).arg("--help").stdout(Stdio::null()).stderr(Stdio::null()).status();
        ended.map_err(BenchError::io("start", program))?;
        times.push(started.elapsed().as_secs_f64() * 1e3);
    }
    let note = format!("median of {starts} starts");
    Ok(vec![Row::new("sparktune --help", median(times), "ms", note).with_target(Target::LessThan(30.0))])
}
