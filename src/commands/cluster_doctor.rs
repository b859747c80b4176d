//! `cluster doctor`: what is between this machine and the other members.

use std::path::Path;

use sparktune_app::cluster::job::{ask, never};
use sparktune_app::cluster::membership::Membership;
use sparktune_app::failure::{Exit, Failure};
use sparktune_app::findings::{Finding, Severity};
use sparktune_app::program::Program;
use sparktune_base::units::bytes;
use sparktune_cluster::doctor::{Line as Examined, Verdict, examine};
use sparktune_cluster::membership::{Found, measure};
use sparktune_telemetry::Machine;
use sparktune_tui::output::{print, print_json};

use crate::doctor::{Line, clock_of_gpu, text};

/// The memory below which a member can hardly train anything.
const LITTLE: u64 = 2 << 30;

/// Runs `sparktune cluster doctor`. The exit code is 4 if something is wrong.
///
/// # Errors
/// The output cannot be written, or what is kept of the membership is damaged.
pub fn cluster_doctor(program: &Program, json: bool) -> Result<Exit, Failure> {
    let get = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    let mut findings: Vec<Finding> = examine(Path::new("/"), get).into_iter().map(finding).collect();
    findings.push(clock_of_gpu(&Machine::gather()).into());
    findings.extend(of_members(program)?);
    let is_sound = findings.iter().all(|finding| finding.severity != Severity::Problem);
    let lines: Vec<Line> = findings.into_iter().map(Line::from).collect();
    if json {
        print_json(&lines)?;
    } else {
        let width = lines.iter().map(Line::width).max().unwrap_or(0);
        print(&lines.iter().map(|line| text(line, width)).collect::<String>())?;
    }
    Ok(if is_sound { Exit::Done } else { Exit::Device })
}

fn finding(line: Examined) -> Finding {
    let severity = match line.verdict {
        Verdict::Ok => Severity::Good,
        Verdict::Skipped => Severity::Skipped,
        Verdict::Unknown => Severity::Unknown,
        Verdict::Note => Severity::Note,
        Verdict::Problem => Severity::Problem,
    };
    Finding { what: line.what, found: line.found, advice: line.advice, severity }
}

fn unknown(what: &str, why: impl Into<String>) -> Finding {
    Finding { severity: Severity::Unknown, ..Finding::good(what, why) }
}

/// Returns what the members themselves say, and how fast they are reached.
fn of_members(program: &Program) -> Result<Vec<Finding>, Failure> {
    let asked =
        Membership::find()?.map(|membership| Ok::<_, Failure>((ask(&membership, never()), membership)));
    let (all, membership) = match asked.transpose()? {
        None => (Err("this machine is no member of a cluster".to_owned()), None),
        Some((all, membership)) => (all.map_err(|failure| failure.to_string()), Some(membership)),
    };
    let (all, membership) = match (all, membership) {
        (Ok(all), Some(membership)) => (all, membership),
        (all, _) => {
            let why = all.err().unwrap_or_default();
            return Ok(["members", "build", "bandwidth", "base model"]
                .map(|what| unknown(what, &why))
                .into());
        }
    };
    let mut findings = vec![who_is_there(&all), builds(&all, &program.build_hash()?)];
    let token = membership.token()?;
    let others = all
        .iter()
        .filter(|found| found.member.gone.is_none() && found.member.introduction.id != membership.id);
    let mut has_others = false;
    for Found { member, host } in others {
        has_others = true;
        let name = &member.introduction.name;
        let what = format!("bandwidth to {name}");
        findings.push(match measure(host, member.introduction.port, &token, never()) {
            Ok(measured) => Finding::good(
                &what,
                format!(
                    "{}/s on one encrypted connection ({} sent), which one core of each machine bounds",
                    bytes((measured.bytes as f64 / measured.seconds) as u64),
                    bytes(measured.bytes)
                ),
            ),
            Err(error) => Finding::good(&what, error.to_string()).but(
                Severity::Problem,
                "Look whether the member runs, and whether a firewall lets its port through",
            ),
        });
        let free = member.report.free_bytes;
        let what = format!("memory of {name}");
        findings.push(match free {
            0 => unknown(&what, "it has not said yet"),
            free if free < LITTLE => Finding::good(&what, format!("{} free", bytes(free)))
                .but(Severity::Note, "End other programs there before a run"),
            free => Finding::good(&what, format!("{} free", bytes(free))),
        });
    }
    if !has_others {
        findings.push(unknown("bandwidth", "there is no other member to measure with"));
    }
    let base = "compared by hash when a run starts; who lacks the files is sent them";
    findings.push(Finding { severity: Severity::Skipped, ..Finding::good("base model", base) });
    Ok(findings)
}

fn who_is_there(all: &[Found]) -> Finding {
    let gone: Vec<_> = all.iter().filter(|found| found.member.gone.is_some()).collect();
    let names = |found: &[&Found]| {
        found.iter().map(|found| found.member.introduction.name.clone()).collect::<Vec<_>>().join(", ")
    };
    let finding = Finding::good("members", format!("{} of {} are there", all.len() - gone.len(), all.len()));
    if gone.is_empty() {
        return finding;
    }
    let advice = format!("Gone: {}. Start `cluster join` there again", names(&gone));
    finding.but(Severity::Problem, advice)
}

fn builds(all: &[Found], own: &str) -> Finding {
    let there = all.iter().filter(|found| found.member.gone.is_none());
    let others: Vec<_> = there
        .filter(|found| found.member.introduction.build != own)
        .map(|found| found.member.introduction.name.clone())
        .collect();
    let finding = Finding::good("build", format!("this one is {}", &own[..12]));
    if others.is_empty() {
        return Finding { found: format!("{}, on all members", finding.found), ..finding };
    }
    let advice =
        format!("Other builds may compute different bits: put the same program on {}", others.join(", "));
    finding.but(Severity::Problem, advice)
}
