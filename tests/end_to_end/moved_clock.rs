//! A run whose clock is set back while it trains.
//!
//! A library that is loaded before libc moves the time of day for the program alone. Where no C compiler is,
//! the test says that it was skipped.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::cluster::run_of;
use crate::kills::{has_state, trainer_of};
use crate::runs::wait;
use crate::sparktune::{Place, done, events, outputs};

/// Adds the seconds in a file, which is read each time, to the time of day.
const LIBRARY: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int clock_gettime(clockid_t clock, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int answer = real(clock, at);
    FILE *file = clock == CLOCK_REALTIME ? fopen(getenv("MOVED_CLOCK"), "r") : 0;
    long seconds = 0;
    if (file && fscanf(file, "%ld", &seconds) == 1) at->tv_sec += seconds;
    if (file) fclose(file);
    return answer;
}
"#;
const YEAR_S: u64 = 366 * 86_400;

/// Compiles the library; nothing without a compiler.
fn library(place: &Place) -> Option<PathBuf> {
    let (source, library) = (place.write("clock.c", LIBRARY), place.join("clock.so"));
    let mut compiler = Command::new("cc");
    let compiled = compiler.args(["-shared", "-fPIC", "-o"]).args([&library, &source]).arg("-ldl").status();
    match compiled {
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

/// Suspends the process that trains a run before it has done so many steps; nothing if it is too late.
fn suspended(run: &Path, steps: usize) -> Option<Pid> {
    let process = trainer_of(run)?;
    let trainer = Pid::from_raw(process as i32)?;
    kill_process(trainer, Signal::STOP).ok()?;
    wait("a suspended trainer", || (!has_state(process, &['R', 'S', 'D', 'I'])).then_some(()));
    if steps_of(run) < steps {
        return Some(trainer);
    }
    let _ = kill_process(trainer, Signal::CONT);
    None
}

#[test]
fn a_run_whose_clock_is_set_back_hears_stop_and_continues_with_the_same_bytes() {
    // However long a busy machine takes to see the first step, the last run is long enough.
    let in_time = [40, 400, 4_000].into_iter().any(is_stopped_and_continued);
    assert!(in_time, "no training was stopped before its end");
}

/// Sets the clock of a training of so many steps back, stops and continues it; false if it had ended before.
fn is_stopped_and_continued(steps: usize) -> bool {
    let place = Place::new();
    let Some(library) = library(&place) else { return true };
    place.chats(40);
    let most = steps.to_string();
    let flags =
        ["--rank", "4", "--mtp", "none", "--epochs", "9999", "--save-steps", "99999", "--max-steps", &most];
    let reference = done(&mut place.train(&[&flags[..], &["--runs-dir", "reference"]].concat())).exits(0);

    let shifted = |mut command: Command| {
        command.env("LD_PRELOAD", &library).env("MOVED_CLOCK", place.join("moved"));
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    };
    let code = |mut child: Child| child.wait().unwrap().code();
    let launcher = shifted(place.train(&flags)).spawn().unwrap();
    let run = wait("a step", || run_of(&place).filter(|run| steps_of(run) > 0));
    let Some(trainer) = suspended(&run, steps) else {
        assert_eq!(code(launcher), Some(0));
        return false;
    };
    place.write("moved", format!("-{YEAR_S}"));
    let stop = shifted(place.command(["stop"])).spawn().unwrap();
    wait("the request", || std::fs::read_dir(run.join("control")).unwrap().next().map(drop));
    kill_process(trainer, Signal::CONT).unwrap();
    assert_eq!((code(stop), code(launcher)), (Some(0), Some(5)));
    let stopped_at = steps_of(&run);
    assert!(stopped_at < steps, "the request was heard only at the end");

    done(&mut shifted(place.command(["resume"]))).exits(0);
    assert_eq!(steps_of(&run), steps);
    assert!(outputs(&run) == outputs(&reference.run_dir()), "the outputs differ");
    let time_us = |attempt: u64| {
        let all = events(&run);
        let times: Vec<u64> = all
            .iter()
            .filter(|event| event["attempt"] == attempt)
            .map(|event| event["time_us"].as_u64().unwrap())
            .collect();
        assert!(times.is_sorted(), "attempt {attempt} goes back in time");
        times[0]
    };
    let back_s = (time_us(1) - time_us(2)) / 1_000_000;
    assert!(back_s.abs_diff(YEAR_S) < 3600, "the clock went back by {back_s} s");
    true
}
