//! `cluster init`, `join`, `status`, `leave`: this machine as a member of a cluster.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use serde::Serialize;
use sparktune_app::answers::runs_dir;
use sparktune_app::cluster::agent::{Ready, reachable_at};
use sparktune_app::cluster::membership::{Coordinator, Membership, never};
use sparktune_app::failure::{Exit, Failure};
use sparktune_app::program::Program;
use sparktune_base::escape::escape;
use sparktune_base::program_name;
use sparktune_base::units::bytes;
use sparktune_cluster::membership::messages::{Member, State};
use sparktune_cluster::membership::{Found, forget};
use sparktune_cluster::{ClusterToken, Error, JobToken, discovery};
use sparktune_tui::output::{note, print, print_json};

use crate::interrupt::Interrupts;
use crate::request::Style;

/// The input of `cluster init`.
#[derive(Debug, Clone, Default)]
pub struct InitRequest {
    /// The name of this machine.
    pub name: Option<String>,
    /// The port of the agent and of calls on the link.
    pub port: Option<u16>,
    /// Whether another token takes the place of the one that is kept.
    pub new_token: bool,
}

/// The input of `cluster join`.
#[derive(Debug, Clone, Default)]
pub struct JoinRequest {
    /// Where a member listens; the coordinator is looked for on the link otherwise.
    pub address: Option<String>,
    /// Where the token is.
    pub token: TokenFrom,
    /// The name of this machine.
    pub name: Option<String>,
    /// The port of the agent.
    pub port: Option<u16>,
    /// The port of calls on the link.
    pub call_port: Option<u16>,
}

/// Where the token comes from.
#[derive(Clone, Default)]
pub enum TokenFrom {
    /// The variable, or what is kept from an earlier time.
    #[default]
    Environment,
    /// Standard input.
    StandardInput,
    /// The command line.
    Flag(String),
}

impl std::fmt::Debug for TokenFrom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Environment => "environment",
            Self::StandardInput => "standard input",
            Self::Flag(_) => "[redacted]",
        })
    }
}

/// What `init` and `join` print as JSON when they listen.
#[derive(Serialize)]
struct Listening<'a> {
    name: &'a str,
    port: u16,
    /// Where others can reach this agent.
    addresses: Vec<String>,
    /// The file with the token.
    token_file: PathBuf,
}

/// Runs `sparktune cluster init`: makes a cluster, or goes on with the one that this machine coordinates, and
/// runs its agent until Ctrl-C.
///
/// # Errors
/// An agent runs already, this machine is a member of another cluster, or the port is taken.
pub fn cluster_init(
    program: &Program,
    request: &InitRequest,
    runs_dir_flag: Option<PathBuf>,
    style: Style,
) -> Result<Exit, Failure> {
    let interrupts = Interrupts::listen()?;
    let kept = Membership::find()?;
    if kept.as_ref().is_some_and(|kept| kept.coordinator.is_some()) {
        return Err(Failure::usage("this machine has joined a cluster that another machine has made").hint(
            format!(
                "`{program} cluster join` goes on with it, and `{program} cluster leave` ends that",
                program = program_name()
            ),
        ));
    }
    let call_port = request.port.unwrap_or(discovery::PORT);
    let (membership, is_new) = match kept.filter(|_| !request.new_token) {
        Some(mut kept) => {
            kept.call_port = request.port.unwrap_or(kept.call_port);
            kept.rename(request.name.as_deref());
            (kept, false)
        }
        None => (Membership::new(&ClusterToken::generate(), request.name.as_deref(), call_port, None), true),
    };
    let ready = Ready::listen(membership, request.port)?;
    let file = ready.membership().keep()?;
    if style.json {
        say_json(&ready, file)?;
    } else {
        say_join_line(&ready, is_new, &file)?;
    }
    if let Some(why) = &ready.deaf {
        let port = ready.membership().call_port;
        note(&format!(
            "members cannot find this one by themselves, and need its address, because UDP port {port} cannot be listened to: {why}"
        ));
    }
    ready.serve(program, &runs_dir(runs_dir_flag)?, &interrupts.flag(), &|text| note(text))?;
    if !style.json {
        note(&ended("init")?);
    }
    Ok(Exit::Done)
}

fn say_json(ready: &Ready, token_file: PathBuf) -> Result<(), Failure> {
    let membership = ready.membership();
    let (name, port) = (membership.name.as_str(), membership.port);
    Ok(print_json(&Listening { name, port, addresses: reachable_at(port), token_file })?)
}

/// Prints the line for the other machines. The token is shown when it is new, and stays in the file.
fn say_join_line(ready: &Ready, is_new: bool, file: &std::path::Path) -> Result<(), Failure> {
    let (program, membership) = (program_name(), ready.membership());
    let shown = escape(&file.display().to_string()).into_owned();
    let port = match membership.call_port {
        discovery::PORT => String::new(),
        port => format!(" --call-port {port}"),
    };
    if is_new {
        note("On the other machines:");
        print(&format!(
            "{}={} {program} cluster join{port}\n",
            JobToken::VARIABLE,
            membership.token()?.reveal()
        ))?;
        note(&format!("The token is a password; it is kept in {shown}, and is not shown again."));
    } else {
        note(&format!("The other machines know the token, or find it here in {shown}."));
    }
    let addresses = reachable_at(membership.port);
    if !addresses.is_empty() {
        note(&format!(
            "Where they do not find this one by themselves, `cluster join` needs an address: {}",
            addresses.join(" or ")
        ));
    }
    note(&format!(
        "{} is a member of the cluster until Ctrl-C, and coordinates it unless another member does. In another terminal: `{program} cluster status`, `{program} train --cluster …`",
        escape(&membership.name)
    ));
    Ok(())
}

/// Runs `sparktune cluster join`: becomes a member, and runs its agent until Ctrl-C.
///
/// # Errors
/// An agent runs already, there is no token or a wrong one, or this machine is a member of another cluster.
pub fn cluster_join(
    program: &Program,
    request: &JoinRequest,
    runs_dir_flag: Option<PathBuf>,
    style: Style,
) -> Result<Exit, Failure> {
    let kept = Membership::find()?;
    if kept.as_ref().is_some_and(|kept| kept.coordinator.is_none()) {
        return Err(Failure::usage("this machine made a cluster itself").hint(format!(
            "`{program} cluster init` goes on with it, `{program} cluster leave` leaves it",
            program = program_name()
        )));
    }
    let token = given_token(&request.token)?;
    let membership = joined(kept, token.as_ref(), request)?;
    if matches!(request.token, TokenFrom::Flag(_)) {
        // Everyone on this machine can read command lines, so this one does not stay.
        membership.keep()?;
        return Err(start_again_without_the_token(program));
    }
    let interrupts = Interrupts::listen()?;
    let ready = Ready::listen(membership, request.port)?;
    if style.json {
        let file = ready.membership().keep()?;
        say_json(&ready, file)?;
    }
    let served = ready.serve(program, &runs_dir(runs_dir_flag)?, &interrupts.flag(), &|text| note(text));
    if served.is_err()
        && let Some(kept) = Membership::find()?.filter(|kept| kept.known.is_empty())
    {
        // Nobody has ever taken its token, which may be a wrong one.
        kept.forget()?;
    }
    served?;
    if !style.json {
        note(&ended("join")?);
    }
    Ok(Exit::Done)
}

/// Says that the agent has ended, and how this machine stands in the cluster.
fn ended(word: &str) -> Result<String, Failure> {
    Ok(match Membership::find()? {
        Some(_) => format!("ended; `{} cluster {word}` goes on, without a token", program_name()),
        None => "ended, because this machine has left the cluster".to_owned(),
    })
}

fn given_token(from: &TokenFrom) -> Result<Option<ClusterToken>, Failure> {
    let text = match from {
        TokenFrom::Flag(text) => Some(text.clone()),
        TokenFrom::StandardInput => {
            let mut text = String::new();
            std::io::stdin().take(4096).read_to_string(&mut text).map_err(|error| {
                Failure::usage(format!("the token cannot be read from standard input: {error}"))
            })?;
            Some(text)
        }
        TokenFrom::Environment => {
            std::env::var(JobToken::VARIABLE).ok().filter(|text| !text.trim().is_empty())
        }
    };
    text.map(|text| ClusterToken::parse(&text).map_err(|_| short_token())).transpose()
}

/// Who joins a cluster needs its token, not a good one.
fn short_token() -> Failure {
    Failure::usage("this is no token of a cluster, because it is shorter than 32 characters")
        .hint(format!("Give the one that `{} cluster init` on the other machine printed", program_name()))
}

/// Returns the membership that follows from what is kept and what is given.
fn joined(
    kept: Option<Membership>,
    token: Option<&ClusterToken>,
    request: &JoinRequest,
) -> Result<Membership, Failure> {
    let address = request.address.as_deref().map(place).transpose()?;
    let of = address.map(|at| Coordinator { at: Some(at), by_call: false });
    let call_port = request.call_port;
    let is_same = |kept: &Membership| {
        Ok::<_, Failure>(match token {
            Some(token) => kept.token()? == *token,
            None => true,
        })
    };
    let Some(mut kept) = kept else {
        let Some(token) = token else { return Err(no_token()) };
        let of = of.unwrap_or(Coordinator { at: None, by_call: true });
        return Ok(Membership::new(
            token,
            request.name.as_deref(),
            call_port.unwrap_or(discovery::PORT),
            Some(of),
        ));
    };
    if !is_same(&kept)? {
        return Err(Failure::usage("this machine is a member of another cluster")
            .hint(format!("`{} cluster leave` ends that", program_name())));
    }
    kept.coordinator = of.or(kept.coordinator);
    kept.call_port = call_port.unwrap_or(kept.call_port);
    kept.rename(request.name.as_deref());
    Ok(kept)
}

fn no_token() -> Failure {
    Failure::usage("a cluster is joined with its token, and none is given").hint(format!(
        "`{} cluster init` on the other machine printed it. Put it into the variable {}, or pass it on standard input with `--token -`: both are safer than `--token TOKEN`, which all users of this machine can see for a moment",
        program_name(),
        JobToken::VARIABLE
    ))
}

/// Reads HOST:PORT, or HOST alone.
fn place(text: &str) -> Result<(String, u16), Failure> {
    let refused = || {
        Failure::usage(format!("\"{}\" is not HOST:PORT", escape(text)))
            .hint("Copy the address that `cluster init` printed, as in 192.168.100.10:7300")
    };
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.starts_with('[') => {
            (host, port.parse().map_err(|_| refused())?)
        }
        _ => (text, discovery::PORT),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let is_plain =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b':' | b'%');
    if host.is_empty() || port == 0 || !host.bytes().all(is_plain) {
        return Err(refused());
    }
    Ok((host.to_owned(), port))
}

/// Becomes the same command without the token, which is kept. Returns only if that fails.
fn start_again_without_the_token(program: &Program) -> Failure {
    let mut words = Vec::new();
    let mut given = std::env::args_os().skip(1);
    while let Some(word) = given.next() {
        match word.to_str() {
            Some("--token") => drop(given.next()),
            Some(text) if text.starts_with("--token=") => {}
            _ => words.push(word),
        }
    }
    match program.path() {
        Ok(path) => {
            let error = Command::new(path).args(words).env_remove(JobToken::VARIABLE).exec();
            Failure::io("start", path, &error)
        }
        Err(failure) => failure,
    }
}

/// A row of `cluster status`.
#[derive(Serialize)]
struct Row {
    name: String,
    address: String,
    build: String,
    gpu: Option<String>,
    link: Option<String>,
    free_bytes: u64,
    state: String,
    /// Whether it is this machine.
    here: bool,
    coordinates: bool,
    gone: Option<String>,
}

impl Row {
    fn new(found: Found, own: &str) -> Self {
        let Found { member, host } = found;
        let coordinates = member.ip.is_none();
        let Member { introduction, report, gone, .. } = member;
        let state = match report.state {
            State::Idle => "idle".to_owned(),
            State::Preparing { run } => format!("prepares {run}"),
            State::Training { run, rank, .. } => format!("rank {rank} of {run}"),
            State::Returning { run, rank, .. } => format!("waits to come back to {run} as rank {rank}"),
        };
        Self {
            name: introduction.name,
            address: format!("{host}:{}", introduction.port),
            build: introduction.build[..12].to_owned(),
            gpu: introduction.gpu,
            link: introduction.link,
            free_bytes: report.free_bytes,
            state,
            here: introduction.id == own,
            coordinates,
            gone,
        }
    }

    fn cells(&self) -> [String; 7] {
        let mark = if self.here { " (here)" } else { "" };
        let none = || "–".to_owned();
        let state = self.gone.as_ref().map_or_else(|| self.state.clone(), |why| format!("gone: {why}"));
        [
            format!("{}{mark}", escape(&self.name)),
            escape(&self.address).into_owned(),
            self.build.clone(),
            self.gpu.as_deref().map_or_else(none, |gpu| escape(gpu).into_owned()),
            if self.free_bytes > 0 { bytes(self.free_bytes) } else { none() },
            self.link.as_deref().map_or_else(none, |link| escape(link).into_owned()),
            escape(&state).into_owned(),
        ]
    }
}

/// Runs `sparktune cluster status`.
///
/// # Errors
/// This machine is no member, or the coordinator does not answer.
pub fn cluster_status(style: Style) -> Result<Exit, Failure> {
    let membership = Membership::required()?;
    let rows: Vec<Row> =
        membership.members(never())?.into_iter().map(|found| Row::new(found, &membership.id)).collect();
    if style.json {
        print_json(&rows)?;
        return Ok(Exit::Done);
    }
    let head = ["member", "address", "build", "GPU", "free memory", "link", "state"].map(str::to_owned);
    let table: Vec<[String; 7]> = std::iter::once(head).chain(rows.iter().map(Row::cells)).collect();
    let widths: [usize; 7] =
        std::array::from_fn(|at| table.iter().map(|row| row[at].chars().count()).max().unwrap_or(0));
    for row in &table {
        let cells = row
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell}{}", " ".repeat(width.saturating_sub(cell.chars().count()))));
        print(&format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end()))?;
    }
    if rows.iter().any(|row| row.here && row.gone.is_some()) {
        note(&format!(
            "No agent runs on this machine: `{} cluster join` or `init` starts one.",
            program_name()
        ));
    }
    if rows.iter().any(|row| row.gone.is_none() && row.build != rows[0].build) {
        note("Members with different builds cannot train together: use the same program on all.");
    }
    Ok(Exit::Done)
}

/// Runs `sparktune cluster leave`: this machine is no member any more, and its agent ends.
///
/// # Errors
/// It is none, or it is training.
pub fn cluster_leave() -> Result<Exit, Failure> {
    let membership = Membership::required()?;
    let (token, id) = (membership.token()?, &membership.id);
    let is_own = |found: &Found| found.member.introduction.id == *id;
    let asked = membership.members(never());
    let own = asked.as_ref().ok().and_then(|all| all.iter().find(|found| is_own(found)));
    let state = own.filter(|own| own.member.gone.is_none()).map(|own| &own.member.report.state);
    let run = match state {
        Some(State::Training { run, .. } | State::Preparing { run }) => Some(run.clone()),
        Some(_) => None,
        None => membership.works_on(),
    };
    if let Some(run) = run {
        let text = format!("this machine works on {}", escape(&run));
        return Err(Failure::usage(text).hint(format!(
            "`{} stop` where it was started ends it after a checkpoint; then leave",
            program_name()
        )));
    }
    // Its agent must not keep what the others answer now.
    membership.forget()?;
    // Each has the list, and any of them may be leaving too.
    let own = ("127.0.0.1".to_owned(), membership.port);
    let places: Vec<(String, u16)> = match &asked {
        Ok(all) => {
            let others = all.iter().filter(|found| !is_own(found) && found.member.gone.is_none());
            others.map(|found| (found.host.clone(), found.member.introduction.port)).collect()
        }
        Err(_) => membership.places().into_iter().filter(|place| *place != own).collect(),
    };
    let mut told = asked.as_ref().map(|_| ()).map_err(ToString::to_string);
    for (host, port) in &places {
        match forget(host, *port, &token, id, never()) {
            // It has forgotten this machine, and nobody coordinates just now.
            Ok(()) | Err(Error::NoCoordinator { .. }) => {}
            Err(error) => told = told.and(Err(error.to_string())),
        }
    }
    if let Err(why) = told {
        note(&format!(
            "not every other member knows that this one leaves; they may list it as gone: {}",
            escape(&why)
        ));
    }
    note("this machine is no longer a member of the cluster");
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_a_port_or_a_host_alone() {
        let read = |text: &str| place(text).map_err(|failure| failure.to_string());
        assert_eq!(read("spark1:7301"), Ok(("spark1".into(), 7301)));
        assert_eq!(read("spark1"), Ok(("spark1".into(), 7300)));
        assert_eq!(read("[fe80::1%enp1]:7301"), Ok(("fe80::1%enp1".into(), 7301)));
        assert_eq!(read("fd00::2"), Ok(("fd00::2".into(), 7300)));
        for text in ["", ":1", "a:0", "a:b", "a b:1", "a\u{1b}[2J:1", "ndp://a:1"] {
            let said = read(text).unwrap_err();
            assert!(said.contains("HOST:PORT") && !said.contains('\u{1b}'), "{said}");
        }
    }

    #[test]
    fn a_short_token_is_not_that_of_the_cluster_and_no_other_one_is_to_be_made() {
        let said = given_token(&TokenFrom::Flag("0123456789abcdef".into())).unwrap_err().to_string();
        assert!(said.contains("cluster init") && !said.contains("openssl"), "{said}");
    }

    #[test]
    fn a_token_in_a_request_is_not_shown() {
        let request = JoinRequest { token: TokenFrom::Flag("secret".into()), ..JoinRequest::default() };
        assert!(!format!("{request:?}").contains("secret"));
    }
}
