//! Several machines side by side: what should be the same on all of them, and the two ends of a link.

use super::card::MTU;
use super::line::{Line, Verdict};
use super::nccl::NCCL;
use super::sysfs::Link;

/// Compares what this machine has found with what others have, by their names. Returns the lines of this
/// machine, each with those who found the same, and after it a line for each member that did not.
pub fn compare(own: Vec<Line>, others: &[(String, Vec<Line>)]) -> Vec<Line> {
    let mut compared = Vec::new();
    for line in own {
        let (mut same, mut differing) = (Vec::new(), Vec::new());
        for (name, lines) in others {
            match lines.iter().find(|theirs| theirs.what == line.what) {
                Some(theirs) if theirs.verdict == line.verdict && theirs.found == line.found => {
                    same.push(name.as_str());
                }
                theirs => differing.push(of_other(&line, name, theirs)),
            }
        }
        let found = match &same[..] {
            [] => line.found,
            same => format!("{} (the same on {})", line.found, same.join(", ")),
        };
        compared.push(Line { found, ..line });
        compared.extend(differing);
    }
    compared
}

/// Returns the line about a member that has not found what this machine has.
fn of_other(own: &Line, name: &str, theirs: Option<&Line>) -> Line {
    let what = format!("{} of {name}", own.what);
    let Some(theirs) = theirs else {
        return Line::new(&what, Verdict::Unknown, "it says nothing about that");
    };
    let is_known = |line: &Line| !matches!(line.verdict, Verdict::Skipped | Verdict::Unknown);
    let worse = match own.what.as_str() {
        MTU => Some((
            Verdict::Problem,
            "Different MTUs on two machines make NCCL fail with error 12: set the same MTU on the cards of all members",
        )),
        NCCL => Some((
            Verdict::Note,
            "NCCL is used only if all members have the same version: install the same version on all of them",
        )),
        _ => None,
    };
    let Some((verdict, advice)) = worse.filter(|_| is_known(own) && is_known(theirs)) else {
        return Line { what, ..theirs.clone() };
    };
    Line {
        what,
        verdict: if theirs.verdict == Verdict::Problem { theirs.verdict } else { verdict },
        found: format!("{}; here: {}", theirs.found, own.found),
        advice: theirs.advice.clone().or_else(|| Some(advice.to_owned())),
    }
}

/// Returns the line about the link to the member of this name, from what each machine knows of its own end.
pub fn between(name: &str, here: Option<&Link>, there: Option<&Link>) -> Line {
    let what = format!("link to {name}");
    let found = format!("{} here, {} there", in_words(here), in_words(there));
    let mtu = |end: Option<&Link>| end.and_then(|end| end.mtu);
    let is_whole = |end: Option<&Link>| end.is_some_and(|end| end.speed.is_some() && end.mtu.is_some());
    match (mtu(here), mtu(there)) {
        (Some(one), Some(other)) if one != other => Line::new(&what, Verdict::Note, found).advice(
            "The two ends have different MTUs, so large packets from one of them may be lost, except over TCP: set the same MTU at both (`ip link set dev INTERFACE mtu N`)",
        ),
        _ if is_whole(here) && is_whole(there) => Line::new(&what, Verdict::Ok, found),
        _ => Line::new(&what, Verdict::Unknown, found),
    }
}

fn in_words(end: Option<&Link>) -> String {
    let Some(Link { interface, speed, mtu }) = end else { return "an unknown interface".to_owned() };
    let speed = speed.as_deref().unwrap_or("unknown speed");
    let mtu = mtu.map_or_else(|| "unknown".to_owned(), |mtu| mtu.to_string());
    format!("{interface} ({speed}, MTU {mtu})")
}
