//! What this machine keeps of the cluster that it belongs to: a private file in the folder of the user's
//! state, with the token.

use std::fs;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sparktune_base::files::is_private_file;
use sparktune_base::program_name;
use sparktune_base::regular_file::read_regular;
use sparktune_cluster::membership::messages::name;
use sparktune_cluster::membership::{Cancelled, Found, members};
use sparktune_cluster::{ClusterToken, Error, random_hex};

use super::kept_launch::KeptLaunch;
use crate::failure::{Exit, Failure};
use crate::folders::{required_state_folder, write_private_file};

/// The name of the file.
const FILE: &str = "cluster.json";
const MOST_BYTES: u64 = 16 << 10;

/// The membership of this machine.
#[derive(Clone, Serialize, Deserialize)]
pub struct Membership {
    token: String,
    /// What the members know this one by.
    pub id: String,
    /// Its name for people.
    pub name: String,
    /// Where its agent listens; 0 until it has.
    pub port: u16,
    /// The port of calls on the link.
    pub call_port: u16,
    /// How the coordinator is found; `None` on the machine that made the cluster.
    pub coordinator: Option<Coordinator>,
    /// Where the agents of the others listened when this one heard of them last: one of them may have become
    /// the coordinator.
    #[serde(default)]
    pub known: Vec<SocketAddr>,
}

/// How a member finds the coordinator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coordinator {
    /// Where it was last, if it was found.
    pub at: Option<(String, u16)>,
    /// Whether it is looked for on the link.
    pub by_call: bool,
}

impl Membership {
    /// Begins a membership. Nothing is kept yet.
    pub fn new(token: &ClusterToken, given: Option<&str>, call_port: u16, of: Option<Coordinator>) -> Self {
        let id = random_hex::<16>();
        let token = token.reveal().to_owned();
        let name = host_name();
        let mut new = Self { token, id, name, port: 0, call_port, coordinator: of, known: Vec::new() };
        new.rename(given);
        new
    }

    /// Gives it another name, if there is one in what is given.
    pub fn rename(&mut self, given: Option<&str>) {
        if let Some(name) = given.map(name).filter(|name| !name.is_empty()) {
            self.name = name;
        }
    }

    /// Returns the token.
    ///
    /// # Errors
    /// The file was changed by hand.
    pub fn token(&self) -> Result<ClusterToken, Failure> {
        Ok(ClusterToken::parse(&self.token)?)
    }

    /// Returns the run of which a rank trains on this machine, also if the agent that started it has ended.
    pub fn works_on(&self) -> Option<String> {
        let kept = KeptLaunch::of_user().ok()?;
        kept.is_in_use().then(|| kept.find().map_or_else(|| "a run".to_owned(), |launch| launch.job.run))
    }

    /// Asks for the members of the cluster: first the agent of this machine, then the others, each of which
    /// names the coordinator.
    ///
    /// # Errors
    /// The coordinator was never found, or nobody who knows it answers.
    pub fn members(&self, cancelled: Cancelled) -> Result<Vec<Found>, Failure> {
        let token = self.token()?;
        let mut failure = None;
        for (host, port) in self.places() {
            match members(&host, port, &token, cancelled.clone()) {
                Ok(all) => return Ok(all),
                Err(Error::Interrupted) => return Err(Error::Interrupted.into()),
                // Whoever has lost the coordinator says what to do.
                Err(error) if !matches!(failure, Some(Error::NoCoordinator { .. })) => failure = Some(error),
                Err(_) => {}
            }
        }
        let is_new = matches!(self.coordinator, Some(Coordinator { at: None, .. }));
        match failure {
            Some(error) if !is_new => Err(error.into()),
            _ => {
                let text = "this member has not found the coordinator yet";
                Err(Failure::new(Exit::Network, text)
                    .hint(format!("`{} cluster join` has to run here until it has", program_name())))
            }
        }
    }

    /// Returns where a program on this machine asks for the coordinator, in this order: the agent of this
    /// machine, the last coordinator, and all others.
    pub fn places(&self) -> Vec<(String, u16)> {
        let own = Some(("127.0.0.1".to_owned(), self.port)).filter(|(_, port)| *port > 0);
        let last = self.coordinator.as_ref().and_then(|coordinator| coordinator.at.clone());
        let mut places: Vec<_> = own.into_iter().chain(last).collect();
        for place in self.known.iter().map(|at| (at.ip().to_string(), at.port())) {
            if !places.contains(&place) {
                places.push(place);
            }
        }
        places
    }

    /// Reads what is kept.
    ///
    /// # Errors
    /// The file is damaged, or others could have written or read it.
    pub fn find() -> Result<Option<Self>, Failure> {
        let path = path()?;
        let file = match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            file => file.map_err(|error| Failure::io("read", &path, &error))?,
        };
        let refused = |why: &str| {
            let text = format!("{} {why}", path.display());
            Err(Failure::usage(text).hint("Delete it, and join the cluster again"))
        };
        if !is_private_file(&file) {
            return refused("is not a private file of yours (mode 0600), so others may know the token in it");
        }
        let bytes = read_regular(&path, MOST_BYTES).map_err(|error| Failure::io("read", &path, &error))?;
        match serde_json::from_slice(&bytes) {
            Ok(membership) => Ok(Some(membership)),
            Err(_) => refused("does not hold what belongs there"),
        }
    }

    /// Reads what is kept, where there has to be something.
    ///
    /// # Errors
    /// The same as for [`Membership::find`], or this machine is no member.
    pub fn required() -> Result<Self, Failure> {
        Self::find()?.ok_or_else(|| {
            let program = program_name();
            Failure::usage("this machine is no member of a cluster")
                .hint(format!("`{program} cluster init` starts one here, `{program} cluster join` joins one"))
        })
    }

    /// Keeps it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn keep(&self) -> Result<PathBuf, Failure> {
        let path = path()?;
        let text = serde_json::to_string_pretty(self).expect("plain fields serialise");
        write_private_file(&path, &text)?;
        Ok(path)
    }

    /// Returns whether this is still what is kept. An agent ends when it is not, and goes on if that cannot
    /// be seen, as on a disk of the network that is away for a moment.
    pub fn is_kept(&self) -> bool {
        match Self::find() {
            Ok(kept) => kept.is_some_and(|kept| kept.id == self.id),
            Err(_) => path().is_ok_and(|path| fs::read(path).is_err()),
        }
    }

    /// Forgets it, and what a rank of this cluster was started with. A rank that still trains goes on.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn forget(&self) -> Result<(), Failure> {
        let path = path()?;
        fs::remove_file(&path).map_err(|error| Failure::io("remove", &path, &error))?;
        KeptLaunch::of_user()?.remove();
        Ok(())
    }
}

fn path() -> Result<PathBuf, Failure> {
    Ok(required_state_folder("the cluster's token")?.join(FILE))
}

/// Returns the name of this machine.
pub fn host_name() -> String {
    let named = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    Some(name(&named)).filter(|name| !name.is_empty()).unwrap_or_else(|| "member".into())
}

/// Never cancels.
pub fn never() -> Cancelled {
    Arc::new(|| false)
}
