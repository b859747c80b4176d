//! `cluster doctor`: this machine, the other members, and what is between them.

use std::net::ToSocketAddrs;
use std::path::{Path, PathBuf};

use sparktune_app::cluster::base::base_folder;
use sparktune_app::cluster::membership::{Membership, never};
use sparktune_app::failure::{Exit, Failure};
use sparktune_app::findings::{Finding, Severity};
use sparktune_app::program::Program;
use sparktune_base::program_name;
use sparktune_base::units::bytes;
use sparktune_cluster::doctor::{self, Link, Verdict, between, compare, examine, interfaces, link_towards};
use sparktune_cluster::membership::{self, Found, describe, holds, measure};
use sparktune_cluster::{ClusterToken, Error};
use sparktune_telemetry::Machine;
use sparktune_tui::output::{note, print, print_json};

use crate::doctor::{Line, clock_of_gpu, text};

/// The memory below which a member can hardly train anything.
const LITTLE: u64 = 2 << 30;
/// The most bytes that all measurements of bandwidth send together. With the headers of packets, that is less
/// than 1 GB of traffic.
const MOST_SENT: u64 = 900_000_000;
/// What the line about the base model is called.
const BASE: &str = "base model";

/// The cluster of this machine.
struct Cluster {
    token: ClusterToken,
    all: Vec<Found>,
    others: Vec<Other>,
}

/// Another member that is there.
struct Other {
    name: String,
    host: String,
    port: u16,
    has_gpu: bool,
    /// What it said last; 0 if nothing.
    free_bytes: u64,
    examined: Result<membership::Examined, Error>,
}

/// Runs `sparktune cluster doctor`. `model` names the base model that is compared. The exit code is 4 if
/// something is wrong.
///
/// # Errors
/// The output cannot be written, or what is kept of the membership is damaged.
pub fn cluster_doctor(
    program: &Program,
    model: Option<&str>,
    runs_dir_flag: Option<PathBuf>,
    json: bool,
) -> Result<Exit, Failure> {
    let root = Path::new("/");
    let get = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    let cluster = gather()?;
    let others: &[Other] = match &cluster {
        Ok(cluster) => &cluster.others,
        Err(_) => &[],
    };
    let said = |other: &Other| {
        let examined = other.examined.as_ref().ok()?;
        Some((other.name.clone(), examined.examination.lines.clone()))
    };
    let said: Vec<_> = others.iter().filter_map(said).collect();
    let mut findings: Vec<Finding> = interfaces(root).into_iter().map(finding).collect();
    findings.extend(compare(examine(root, get), &said).into_iter().map(finding));
    findings.push(clock_of_gpu(&Machine::gather()).into());
    match &cluster {
        Ok(cluster) => {
            findings.push(who_is_there(&cluster.all));
            findings.push(builds(&cluster.all, &program.build_hash()?));
            let most_sent = MOST_SENT / others.len().max(1) as u64;
            findings.extend(others.iter().flat_map(|other| about(other, &cluster.token, most_sent)));
            if others.is_empty() {
                findings.push(unknown("bandwidth", "there is no other member to measure with"));
                findings.push(unknown(BASE, "there is no other member to compare it with"));
            } else {
                findings.push(base_model(others, &cluster.token, base_folder(model, runs_dir_flag)));
            }
        }
        Err(why) => {
            findings.extend(["members", "build", "bandwidth", BASE].map(|what| unknown(what, why)));
        }
    }
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

fn finding(line: doctor::Line) -> Finding {
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

/// Asks the coordinator for the members, and each of the others what its machine looks like. The inner error
/// says why nobody can be asked.
fn gather() -> Result<Result<Cluster, String>, Failure> {
    let Some(membership) = Membership::find()? else {
        return Ok(Err("this machine is no member of a cluster".to_owned()));
    };
    let all = match membership.members(never()) {
        Ok(all) => all,
        Err(failure) => return Ok(Err(failure.to_string())),
    };
    let token = membership.token()?;
    let others = all
        .iter()
        .filter(|found| found.member.gone.is_none() && found.member.introduction.id != membership.id)
        .map(|Found { member, host }| Other {
            name: member.introduction.name.clone(),
            host: host.clone(),
            port: member.introduction.port,
            has_gpu: member.introduction.gpu.is_some(),
            free_bytes: member.report.free_bytes,
            examined: membership::examine(host, member.introduction.port, &token, never()),
        })
        .collect();
    Ok(Ok(Cluster { token, all, others }))
}

/// Returns what there is to say about another member and the way to it. The bandwidth is measured here, with
/// at most so many bytes.
fn about(other: &Other, token: &ClusterToken, most_sent: u64) -> Vec<Finding> {
    let Other { name, host, port, has_gpu, free_bytes, examined } = other;
    let mut findings = match examined {
        Ok(membership::Examined { examination, clock }) => {
            let here = link_to(host, *port);
            let link = between(name, here.as_ref(), examination.link.as_ref());
            vec![finding(link), finding(clock.line(name))]
        }
        Err(error) => vec![unknown(&format!("machine of {name}"), error.to_string())],
    };
    if *has_gpu {
        let why = format!("an agent puts no load on its GPU: run `{} cluster doctor` there", program_name());
        findings.push(unknown(&format!("clock under load of {name}"), why));
    }
    let what = format!("bandwidth to {name}");
    findings.push(match measure(host, *port, token, most_sent, never()) {
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
            "Check that the member is running, and that a firewall lets its port through",
        ),
    });
    let what = format!("memory of {name}");
    findings.push(match *free_bytes {
        0 => unknown(&what, "it has not said yet"),
        free if free < LITTLE => Finding::good(&what, format!("{} free", bytes(free)))
            .but(Severity::Note, "End other programs there before a run"),
        free => Finding::good(&what, format!("{} free", bytes(free))),
    });
    findings
}

/// Returns the link by which this machine reaches a member.
fn link_to(host: &str, port: u16) -> Option<Link> {
    let at = (host, port).to_socket_addrs().ok()?.next()?;
    link_towards(Path::new("/"), at.ip().to_canonical())
}

/// Returns whether the other members have the files of a folder, which are read on all machines.
fn base_model(others: &[Other], token: &ClusterToken, folder: Result<PathBuf, String>) -> Finding {
    let folder = match folder {
        Ok(folder) => folder,
        Err(why) => return unknown(BASE, why),
    };
    let shown = folder.display().to_string();
    note(&format!("reading {shown} here and on the other members"));
    let model = match describe(&folder, &mut || Ok(())) {
        Ok(model) => model,
        Err(error) => return unknown(BASE, error.to_string()),
    };
    let (mut have, mut lack, mut silent) = (Vec::new(), Vec::new(), Vec::new());
    for Other { name, host, port, .. } in others {
        match holds(host, *port, token, &model, never()) {
            Ok(true) => have.push(name.as_str()),
            Ok(false) => lack.push(name.as_str()),
            Err(error) => silent.push(format!("not known for {name}: {error}")),
        }
    }
    let mut found = vec![format!("{shown} ({})", bytes(model.bytes()))];
    if !have.is_empty() {
        found.push(format!("the same files, by their hashes, on {}", have.join(", ")));
    }
    if !lack.is_empty() {
        found.push(format!("missing or different on {}", lack.join(", ")));
    }
    let (is_lacking, is_unknown) = (!lack.is_empty(), !silent.is_empty());
    found.extend(silent);
    let finding = Finding::good(BASE, found.join("; "));
    match (is_lacking, is_unknown) {
        (true, _) => finding.but(
            Severity::Note,
            "`train --cluster` sends the files to those who lack them; for another launcher, copy the folder",
        ),
        (false, true) => Finding { severity: Severity::Unknown, ..finding },
        (false, false) => finding,
    }
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
