//! Starts a run on all members: the ranks on the others, and the environment of rank 0 for this machine.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sparktune_base::escape::escape;
use sparktune_base::program_name;
use sparktune_base::units::bytes as in_bytes;
use sparktune_cluster::membership::messages::{Job, State};
use sparktune_cluster::membership::{
    Cancelled, Crew, Following, Found, Recruit, Watch, describe, prepare, reached_at,
};
use sparktune_cluster::{Error, JobToken, environment_of, free_port, random_hex};
use sparktune_runlog::RunDir;

use super::membership::Membership;
use super::newcomers::{Arriving, Newcomers, Room, ending};
use crate::failure::Failure;
use crate::listener::{Listener, Progress, Unit};
use crate::models::plan_of;
use crate::program::Program;

/// The shortest time between two reports of progress.
const BETWEEN_REPORTS: Duration = Duration::from_millis(200);

/// The members that shall train with this machine.
pub struct Members {
    membership: Membership,
    others: Vec<Recruit>,
    /// This machine's own agent, if it runs.
    own: Option<Recruit>,
    /// The ids of all these members.
    ids: BTreeSet<String>,
}

/// A run whose other ranks have been started.
pub struct Started {
    /// What the trainer on this machine needs to be rank 0.
    pub environment: Vec<(String, String)>,
    crew: Crew,
    /// What those are given that come later, if the run lets them in.
    newcomers: Option<Newcomers>,
}

/// The ranks of the members, looked after in the background.
pub struct Ranks {
    crew: Following,
    newcomers: Option<Arriving>,
}

impl Members {
    /// Asks the coordinator who is there.
    ///
    /// # Errors
    /// This machine is no member, the coordinator does not answer, a member is busy, or there is no other
    /// one.
    pub fn gather(program: &Program, listener: &dyn Listener, cancelled: Cancelled) -> Result<Self, Failure> {
        let membership = Membership::required()?;
        let all = membership.members(cancelled)?;
        let build = program.build_hash()?;
        let (mut others, mut own, mut problems) = (Vec::new(), None, Vec::new());
        let mut ids = BTreeSet::from([membership.id.clone()]);
        for Found { member, host } in all {
            let shown = escape(&member.introduction.name).into_owned();
            let is_own = member.introduction.id == membership.id;
            if let Some(why) = member.gone.as_ref().filter(|_| is_own) {
                listener.note(&format!(
                    "no agent runs on this machine ({}): it trains all the same, but other members cannot see it. `{} cluster init` or `join` starts one",
                    escape(why),
                    program_name()
                ));
                continue;
            }
            if let Some(why) = &member.gone {
                listener.note(&format!("{shown} is gone ({}) and does not train", escape(why)));
                continue;
            }
            match &member.report.state {
                // A rank that waits to come back makes way.
                State::Idle | State::Returning { .. } => {}
                State::Preparing { run } | State::Training { run, .. } => {
                    problems.push(format!("{shown} is busy with {}", escape(run)));
                }
            }
            if member.introduction.build != build {
                problems.push(format!(
                    "{shown} has another build of sparktune, which may compute different bits"
                ));
            }
            let host = if is_own { "127.0.0.1".to_owned() } else { host };
            let recruit = Recruit { name: shown, host, port: member.introduction.port };
            ids.insert(member.introduction.id);
            if is_own { own = Some(recruit) } else { others.push(recruit) }
        }
        if !problems.is_empty() {
            let text = format!("not all members can train now: {}", problems.join("; "));
            return Err(Failure::usage(text).hint(format!(
                "`{program} cluster status` shows them; wait or stop what runs, and use the same program on all",
                program = program_name()
            )));
        }
        if others.is_empty() {
            return Err(Failure::usage("there is no other member to train with").hint(format!(
                "Start `{program} cluster join` on the other machines; `{program} cluster status` shows who is there",
                program = program_name()
            )));
        }
        tell_apart(&mut others, own.as_ref());
        Ok(Self { membership, others, own, ids })
    }

    /// Returns the number of ranks.
    pub fn world_size(&self) -> usize {
        self.others.len() + 1
    }

    /// Gives every member the files it lacks, and starts their ranks.
    ///
    /// # Errors
    /// A member refuses or is gone, or the model cannot be read.
    pub fn start(
        &self,
        program: &Program,
        run: &RunDir,
        listener: &dyn Listener,
        cancelled: Cancelled,
    ) -> Result<Started, Failure> {
        let plan = plan_of(run)?;
        let swarm = plan.ranks.swarm;
        let places: Vec<PathBuf> = [plan.model.path, plan.model.mtp_path].into_iter().flatten().collect();
        let mut folders = Vec::new();
        for place in &places {
            listener.note(&format!("reading {} for the other members", escape(&place.display().to_string())));
            let mut tick = || if cancelled() { Err(Error::Interrupted) } else { Ok(()) };
            folders.push(describe(place, &mut tick)?);
        }
        let total = folders.iter().map(|folder| folder.bytes()).sum();
        // Somebody else may take the port before rank 0 does, which then says so.
        let port = free_port()?;
        let token = random_hex::<32>();
        let world_size = self.world_size();
        let job = Job {
            run: run.name(),
            build: program.build_hash()?,
            rank: 1,
            world_size,
            port,
            token: token.clone(),
            swarm,
            folders,
        };
        let (host, recruits) = reached_at(&self.others);
        let cluster = self.membership.token()?;
        let progress = Sending { listener, total, sent: Mutex::default() };
        let mut crew = prepare(&recruits, &cluster, &job, &places, cancelled, &progress)?;
        if let Some(own) = &self.own {
            crew.led_from(own, &cluster, &job)?;
        }
        let ranks =
            self.others.iter().enumerate().map(|(at, other)| format!("rank {} is {}", at + 1, other.name));
        listener.note(&format!("rank 0 is this machine, {}", ranks.collect::<Vec<_>>().join(", ")));
        let mut environment = environment_of(0, world_size, &host.to_string(), port);
        environment.push((JobToken::VARIABLE.to_owned(), token));
        let newcomers = swarm.then(|| {
            let (membership, ids) = (self.membership.clone(), self.ids.clone());
            Newcomers::new(membership, cluster, ids, self.others.clone(), job, places)
        });
        Ok(Started { environment, crew, newcomers })
    }
}

impl Started {
    /// Looks after the ranks while the run goes on. `ended` receives a line if one of them ends early.
    /// Members that come later are brought to work while there is `room` for them, and `note` is told of it.
    ///
    /// # Errors
    /// The system starts no thread.
    pub fn follow(
        self,
        ended: impl Fn(&str) + Send + Sync + 'static,
        room: impl Fn() -> Room + Send + Sync + 'static,
        note: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Ranks, Failure> {
        let crew = self.crew.follow(move |name, code, said| {
            if let Some(line) = ending(name, code, said) {
                ended(&line);
            }
        })?;
        let newcomers = self.newcomers.map(|newcomers| newcomers.bring(room, note)).transpose()?;
        Ok(Ranks { crew, newcomers })
    }
}

impl Ranks {
    /// Lets the ranks go, of a run that goes on or has ended, and brings nobody else.
    pub fn let_go(self, goes_on: bool) {
        let newcomers = self.newcomers.map(Arriving::end).unwrap_or_default();
        Following::let_go(newcomers.into_iter().chain([self.crew]), goes_on);
    }
}

/// Adds the address to the name of each machine that has the name of another one.
fn tell_apart(others: &mut [Recruit], own: Option<&Recruit>) {
    let names: Vec<String> = others.iter().chain(own).map(|member| member.name.clone()).collect();
    for other in others {
        if names.iter().filter(|name| **name == other.name).count() > 1 {
            other.name = format!("{} at {}", other.name, escape(&other.host));
        }
    }
}

/// Shows what is sent.
struct Sending<'a> {
    listener: &'a dyn Listener,
    total: u64,
    sent: Mutex<BTreeMap<String, (u64, Option<Instant>)>>,
}

impl Watch for Sending<'_> {
    fn sent(&self, to: &str, bytes: u64) {
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        let (done, reported) = sent.entry(to.to_owned()).or_default();
        *done += bytes;
        if reported.is_none_or(|at| at.elapsed() >= BETWEEN_REPORTS) {
            *reported = Some(Instant::now());
            self.listener.progress(&Progress {
                what: format!("sending the model to {to}"),
                done: *done,
                total: Some(self.total),
                unit: Unit::Bytes,
                note: None,
            });
        }
    }

    fn ready(&self, member: &str, fetched: u64) {
        self.listener.note(&match fetched {
            0 => format!("{member} has the model already"),
            fetched => format!("{member} has got {} of the model", in_bytes(fetched)),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_of_the_same_name_are_told_apart_by_their_addresses() {
        let member = |name: &str, host: &str| Recruit { name: name.into(), host: host.into(), port: 1 };
        let mut others = [member("vm", "10.0.0.2"), member("spark", "10.0.0.3")];
        tell_apart(&mut others, Some(&member("vm", "127.0.0.1")));
        assert_eq!(others.map(|other| other.name), ["vm at 10.0.0.2", "spark"]);
    }
}
