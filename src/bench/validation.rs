//! Validation speed: every line of a sample file is read, parsed and checked, as `sparktune check` does.
//!
//! The peer is Python's `json.loads` on each line of the same file, which parses and checks nothing else.
//! Passes of both alternate; a first pass of ours brings the file into the page cache.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use serde::Deserialize;
use sparktune_data::{CheckOptions, check};

use crate::context::Context;
use crate::cpu::process_cpu_seconds;
use crate::error::BenchError;
use crate::median::median;
use crate::row::{Row, Target, Timing};
use crate::sample::write_sample;
use crate::worker::shortened;

/// Reads every line of the file that it is given and prints what that took.
const PEER: &str = r#"
import json, sys, time
began, cpu_began = time.perf_counter(), time.process_time()
with open(sys.argv[1], "rb") as lines:
    for line in lines:
        json.loads(line)
print(json.dumps({"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - cpu_began}))
"#;

pub(crate) fn measure(context: &Context) -> Result<Vec<Row>, BenchError> {
    let sample = context.folder.join("validation.jsonl");
    write_sample(&sample, context.size.validation_bytes)?;
    let bytes = std::fs::metadata(&sample).map_err(BenchError::io("read", &sample))?.len();
    ours(&sample)?;
    let (mut own, mut peers) = (Vec::new(), Vec::new());
    for _ in 0..context.size.validation_passes {
        own.push(ours(&sample)?);
        if let Some(python) = &context.options.peers {
            peers.push(json_loads(python, &sample)?);
        }
    }
    std::fs::remove_file(&sample).map_err(BenchError::io("remove", &sample))?;

    let rate = |timing: Timing| bytes as f64 / 1e6 / timing.seconds;
    let own = middle(&own);
    let note = match context.options.peers {
        Some(_) => format!("median of {} passes, alternating with the peer", context.size.validation_passes),
        None => "no peer was run: --peers PYTHON runs json.loads".to_owned(),
    };
    let mut rows = vec![
        Row::new("validation", rate(own), "MB/s", note).with_target(Target::AtLeast(1000.0)).with_timing(own),
    ];
    if !peers.is_empty() {
        let peer = middle(&peers);
        let note = "Python, one thread; parses and checks nothing else";
        rows.push(Row::new("  json.loads", rate(peer), "MB/s", note).with_timing(peer));
        rows.push(Row::new("  ratio to json.loads", peer.seconds / own.seconds, "×", ""));
    }
    Ok(rows)
}

fn ours(sample: &Path) -> Result<Timing, BenchError> {
    let (began, cpu_began) = (Instant::now(), process_cpu_seconds());
    check(&[sample.to_owned()], &CheckOptions::default(), &())?;
    let cpu = process_cpu_seconds().zip(cpu_began).map_or(f64::NAN, |(now, began)| now - began);
    Ok(Timing { seconds: began.elapsed().as_secs_f64(), cpu_seconds: cpu })
}

fn json_loads(python: &Path, sample: &Path) -> Result<Timing, BenchError> {
    #[derive(Deserialize)]
    struct Printed {
        seconds: f64,
        cpu_seconds: f64,
    }
    let done = Command::new(python)
        .args(["-c", PEER])
        .arg(sample)
        .stdin(Stdio::null())
        .output()
        .map_err(BenchError::io("start", python))?;
    match serde_json::from_slice(&done.stdout) {
        Ok(Printed { seconds, cpu_seconds }) if done.status.success() => Ok(Timing { seconds, cpu_seconds }),
        _ => Err(BenchError::Peer {
            peer: python.display().to_string(),
            what: format!(
                "did not time json.loads: {}, {}",
                done.status,
                shortened(&String::from_utf8_lossy(&done.stderr))
            ),
            advice: "Name a Python 3 with --peers, or omit --peers".into(),
        }),
    }
}

fn middle(timings: &[Timing]) -> Timing {
    Timing {
        seconds: median(timings.iter().map(|timing| timing.seconds)),
        cpu_seconds: median(timings.iter().map(|timing| timing.cpu_seconds)),
    }
}
