//! A run whose clock is set back while it trains.
//!
//! A library that is loaded before libc moves the time of day for the program alone. Where there is no
//! C compiler, the test says that it was skipped.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};

use crate::cluster::run_of;
use crate::kills::trainer_of;
use crate::runs::{Heard, wait};
use crate::signals::{hold, send};
use crate::sparktune::{Place, done, events, outputs};

const YEAR_S: i64 = 366 * 86_400;

/// Compiles the library; `None` if there is no C compiler.
fn compiled(place: &Place) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/faults/moved_clock.c");
    let library = place.join("clock.so");
    let mut compiler = Command::new("cc");
    match compiler.args(["-shared", "-fPIC", "-o"]).args([&library, &source]).arg("-ldl").status() {
        Ok(status) => {
            assert!(status.success(), "the library that moves the clock was not compiled");
            Some(library)
        }
        Err(_) => {
            println!("skipped: there is no C compiler for the library that moves the clock");
            None
        }
    }
}

fn steps_of(run: &Path) -> usize {
    events(run).iter().filter(|event| event["kind"] == "step").count()
}

/// The times of an attempt's events, in microseconds.
fn times_of(run: &Path, attempt: u64) -> Vec<u64> {
    let all = events(run).into_iter().filter(|event| event["attempt"] == attempt);
    all.map(|event| event["time_us"].as_u64().unwrap()).collect()
}

#[test]
fn a_run_whose_clock_is_set_back_hears_stop_and_continues_with_the_same_bytes() {
    // However long a busy machine takes to see the first step, the last run is long enough.
    let in_time = [40, 400, 4_000].into_iter().any(is_stopped_and_continued);
    assert!(in_time, "no training was stopped before its end");
}

/// Starts a training of so many steps, sets its clock back, stops it, continues it, and compares it with one
/// whose clock nobody sets. False if it came to its end before it was stopped.
fn is_stopped_and_continued(steps: usize) -> bool {
    let place = Place::new();
    let Some(library) = compiled(&place) else { return true };
    place.chats(40);
    let max_steps = steps.to_string();
    let few = ["--rank", "4", "--mtp", "none", "--epochs", "9999", "--save-steps", "99999"];
    let flags = [&few[..], &["--max-steps", &max_steps]].concat();
    let with_clock = |mut command: Command| {
        command.env("LD_PRELOAD", &library).env("MOVED_CLOCK", place.join("moved"));
        command
    };
    let launcher = Heard::of(with_clock(place.train(&flags)).spawn().unwrap());
    let run = wait("a step", || run_of(&place).filter(|run| steps_of(run) > 0));
    let Some(trainer) = trainer_of(&run).filter(|trainer| hold(*trainer)) else {
        launcher.end().exits(0);
        return false;
    };
    if steps_of(&run) == steps {
        // It may be about to end, and then there is nothing to stop.
        let _ = kill_process(Pid::from_raw(trainer as i32).unwrap(), Signal::CONT);
        launcher.end().exits(0);
        return false;
    }
    place.write("moved", format!("-{YEAR_S}"));
    let stop = Heard::of(with_clock(place.command(["stop"])).spawn().unwrap());
    wait("the request", || {
        let mut requests = fs::read_dir(run.join("control")).unwrap().map(|entry| entry.unwrap().path());
        requests.find(|path| path.extension().is_some_and(|end| end == "json"))
    });
    send(Signal::CONT, trainer);
    let (stop, launcher) = (stop.end(), launcher.end());
    if steps_of(&run) == steps {
        return false;
    }
    stop.exits(0);
    launcher.exits(5);

    done(&mut with_clock(place.command(["resume"]))).exits(0);
    assert_eq!(steps_of(&run), steps);
    let [first, second] = [1, 2].map(|attempt| times_of(&run, attempt));
    assert!(first.is_sorted() && second.is_sorted(), "events go back in time");
    let back_s = (first[0] as i64 - second[0] as i64) / 1_000_000;
    assert!(back_s.abs_diff(YEAR_S) < 3_600, "the clock went back by {back_s} s");
    let reference = done(&mut place.train(&[&flags[..], &["--runs-dir", "reference"]].concat())).exits(0);
    assert!(outputs(&run) == outputs(&reference.run_dir()), "the outputs differ");
    true
}
