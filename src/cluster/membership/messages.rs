//! What members and the programs that ask them say to each other, on a channel on which both sides have
//! proved the token. Pure, because bytes of others are read here.
//!
//! Each message is JSON in one frame of the channel, of at most 64 KiB. One side asks, the other answers, in
//! turn; only the files of a model are packets. What is read is bounded, and texts of others are free of
//! control characters before anybody sees them.

use std::net::{IpAddr, SocketAddr};
use std::path::{Component, Path};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sparktune_base::escape::is_active;
use sparktune_base::files::is_plain_name;

use crate::doctor::{Line, Link};

/// The version of these messages. It changes when an older program would misunderstand them; a question that
/// it does not know is refused in words.
pub const VERSION: u32 = 1;
/// The most members of a cluster.
pub const MOST_MEMBERS: usize = 64;
/// The most files of a folder that is sent.
pub const MOST_FILES: usize = 256;
/// The most lines of an examination, so that it fits into a message.
const MOST_LINES: usize = 8;
/// The most bytes of a measurement of a link.
pub const MOST_MEASURED: u64 = 1 << 30;
/// The longest name, and the longest sentence.
const LONGEST_NAME: usize = 80;
const LONGEST_SENTENCE: usize = 1000;
const LONGEST_PATH: usize = 1024;

/// Why a message is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message of each variant says what it is")]
pub enum Unfit {
    #[error("it says something that this program does not know. Use the same program on all members")]
    Unknown,
    #[error("its message has {0} that cannot be right")]
    Field(&'static str),
}

/// What a member says of itself when it joins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Introduction {
    /// [`VERSION`].
    pub version: u32,
    /// 32 hexadecimal digits that it drew once.
    pub id: String,
    /// Its name for people.
    pub name: String,
    /// The hash of its program.
    pub build: String,
    /// Where its agent listens.
    pub port: u16,
    /// Its GPU, if it has one.
    pub gpu: Option<String>,
    /// The speed of its link to the coordinator, if the system says so. It finds that when it dials.
    pub link: Option<String>,
}

/// What a member is doing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// It waits for work.
    Idle,
    /// It fetches or checks the files of a model.
    Preparing {
        /// The name of the run.
        run: String,
    },
    /// It trains.
    Training {
        /// The name of the run.
        run: String,
        /// Which rank it is.
        rank: usize,
        /// Of how many, which have equal shares of the work.
        world_size: usize,
    },
    /// Its rank has ended before the run of the others, and comes back if it can. Other work goes first.
    Returning {
        /// The name of the run.
        run: String,
        /// Which rank it was.
        rank: usize,
        /// Of how many.
        world_size: usize,
    },
}

/// What a member says again and again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Memory that a program could have now.
    pub free_bytes: u64,
    /// What it is doing.
    pub state: State,
}

/// A member as the coordinator sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// What it said of itself.
    pub introduction: Introduction,
    /// Where it is; `None` for the coordinator, which is where it was asked.
    pub ip: Option<IpAddr>,
    /// What it said last.
    pub report: Report,
    /// Why it is gone, if it is.
    pub gone: Option<String>,
}

/// What a member says of its role in coordinating the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// Its id.
    pub id: String,
    /// Where its agent listens.
    pub port: u16,
    /// The term, as far as it knows. Each takeover begins a new one.
    pub term: u64,
    /// Its role.
    pub role: Role,
}

/// The role of a member in coordinating the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// It keeps the list of members.
    Coordinates,
    /// It is connected to the member that does.
    Follows,
    /// It is connected to nobody that does.
    Seeks,
}

/// A file that a rank needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Its name in its folder.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Its hash, in 64 hexadecimal digits.
    pub blake3: String,
}

/// A folder of files that ranks need: the base model, or the model whose MTP head is used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Folder {
    /// Where it is on the machine that has it, where others may have the same.
    pub path: String,
    /// Its files.
    pub files: Vec<FileEntry>,
}

/// One rank of a run.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// The name of the run.
    pub run: String,
    /// The program that all ranks must be.
    pub build: String,
    /// Which rank this one is; 0 is where the run was started.
    pub rank: usize,
    /// How many there are.
    pub world_size: usize,
    /// The port of rank 0.
    pub port: u16,
    /// The token of the ranks of this job alone.
    pub token: String,
    /// Whether the others go on without a rank that has ended, so that it can come back.
    pub swarm: bool,
    /// The model, and the one with the head if that is another.
    pub folders: Vec<Folder>,
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { run, rank, world_size, port, .. } = self;
        write!(f, "rank {rank} of {world_size} of {run} at port {port}, token [redacted]")
    }
}

/// What a member has found when it examined its machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Examination {
    /// What should be the same on all members.
    pub lines: Vec<Line>,
    /// The link by which it reaches the machine that asks, if it knows that.
    pub link: Option<Link>,
    /// The time by its wall clock when it answered, in microseconds since the Unix epoch.
    pub time_us: u64,
}

/// What a member knows of a run that may go on without the machine that asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GoesOn {
    /// The name of the member.
    pub member: String,
    /// Whether a rank of it trains that run now, and is not rank 0 of it.
    pub trains: bool,
    /// With what a rank of it has gone on in rank 0's place, if one has.
    pub successor: Option<Successor>,
}

/// The run of a successor: of a rank that has taken rank 0's place and goes on with the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Successor {
    /// Its name there.
    pub run: String,
    /// The steps that are done.
    pub step: u64,
    /// Whether it is being trained.
    pub trains: bool,
}

/// How a rank stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RankState {
    /// It waits for the other ranks.
    Waiting,
    /// It has met them.
    Training,
    /// Its process has ended.
    Ended {
        /// The exit code, unless a signal ended it.
        code: Option<i32>,
        /// The last thing it said.
        said: String,
    },
}

/// What an agent is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ask {
    /// This is the role of the asking member. What is that of the other side?
    Stand(Standing),
    /// A member wants to be in the list, for as long as this channel holds.
    Join(Introduction),
    /// Such a member says how it is.
    Report(Report),
    /// Who is there?
    Members,
    /// This member is gone for good.
    Forget {
        /// Its id.
        id: String,
    },
    /// Make everything ready for this rank.
    Prepare(Job),
    /// Start it.
    Start,
    /// How is it?
    Look,
    /// Let it go on alone.
    Detach,
    /// The run of this name is led from this machine, for as long as this channel holds.
    Lead {
        /// The name of the run.
        run: String,
        /// How many ranks it has.
        world_size: usize,
    },
    /// Take so many bytes of packets, for a measurement.
    Measure {
        /// How many.
        bytes: u64,
    },
    /// What does its machine look like?
    Examine,
    /// Are the files of this folder there?
    Holds(Folder),
    /// Does the run of this name go on here, or has it?
    GoesOn {
        /// The name of the run.
        run: String,
    },
}

/// What an agent answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// Done, or: go on.
    Yes,
    /// The agent's role.
    Stands(Standing),
    /// The members.
    Members(Vec<Member>),
    /// Another member coordinates, and can answer this.
    Elsewhere {
        /// Where its agent listens, as seen from here.
        at: SocketAddr,
    },
    /// The bytes of this file from there on, please.
    Want {
        /// Which folder of the job.
        folder: usize,
        /// Which file of it.
        file: usize,
        /// Where to begin.
        from: u64,
    },
    /// Something takes a while.
    Busy,
    /// Everything is ready. So many bytes had to be fetched.
    Ready {
        /// The bytes.
        fetched: u64,
    },
    /// How the rank stands.
    Rank(RankState),
    /// What the machine looks like.
    Examined(Examination),
    /// Whether the files are there, all with the same bytes.
    Holds(bool),
    /// What is known of the run.
    GoesOn(GoesOn),
    /// No.
    Refused {
        /// Why, and what to do.
        why: String,
    },
}

/// A message whose fields can be checked.
pub trait Message: DeserializeOwned + Serialize {
    /// Says which field cannot be right.
    ///
    /// # Errors
    /// One of them cannot be.
    fn check(&self) -> Result<(), Unfit>;

    /// Reads a message.
    ///
    /// # Errors
    /// It is none, or a field of it cannot be right.
    fn parse(bytes: &[u8]) -> Result<Self, Unfit> {
        let message: Self = serde_json::from_slice(bytes).map_err(|_| Unfit::Unknown)?;
        message.check()?;
        Ok(message)
    }
}

impl Message for Ask {
    fn check(&self) -> Result<(), Unfit> {
        match self {
            Self::Stand(standing) => standing.check(),
            Self::Join(introduction) => introduction.check(),
            Self::Report(report) => report.check(),
            Self::Forget { id } => field(is_hex(id, 32), "an id"),
            Self::Prepare(job) => job.check(),
            Self::Lead { run, world_size } => {
                field(is_plain_name(run) && (1..=MOST_MEMBERS).contains(world_size), "a run")
            }
            Self::GoesOn { run } => field(is_plain_name(run), "a run"),
            Self::Measure { bytes } => field(*bytes <= MOST_MEASURED, "a size"),
            Self::Holds(folder) => folder.check(),
            Self::Members | Self::Start | Self::Look | Self::Detach | Self::Examine => Ok(()),
        }
    }
}

impl Message for Answer {
    fn check(&self) -> Result<(), Unfit> {
        match self {
            Self::Members(members) => {
                field(members.len() <= MOST_MEMBERS, "a list of members")?;
                members.iter().try_for_each(|member| {
                    member.introduction.check()?;
                    member.report.check()?;
                    field(member.gone.as_deref().is_none_or(is_sentence), "a reason")
                })
            }
            Self::Stands(standing) => standing.check(),
            Self::Elsewhere { at } => {
                let is_of_a_machine = !at.ip().is_unspecified() && !at.ip().is_multicast();
                field(is_of_a_machine && at.port() > 0, "an address")
            }
            Self::Refused { why } => field(is_sentence(why), "a reason"),
            Self::Rank(RankState::Ended { said, .. }) => field(is_sentence(said), "last words"),
            Self::Want { folder, file, .. } => field(*folder < 2 && *file < MOST_FILES, "a file"),
            Self::Examined(examination) => examination.check(),
            Self::GoesOn(GoesOn { member, successor, .. }) => {
                field(is_name(member), "a name")?;
                field(successor.as_ref().is_none_or(|there| is_plain_name(&there.run)), "a run")
            }
            Self::Yes | Self::Busy | Self::Ready { .. } | Self::Rank(_) | Self::Holds(_) => Ok(()),
        }
    }
}

impl Introduction {
    fn check(&self) -> Result<(), Unfit> {
        let Self { version, id, name, build, port, gpu, link } = self;
        if *version != VERSION {
            return Err(Unfit::Unknown);
        }
        field(is_hex(id, 32), "an id")?;
        field(is_name(name), "a name")?;
        field(is_hex(build, 64), "a build")?;
        field(*port > 0, "a port")?;
        field([gpu, link].into_iter().flatten().all(|text| is_name(text)), "a device")
    }
}

impl Standing {
    fn check(&self) -> Result<(), Unfit> {
        field(is_hex(&self.id, 32), "an id")?;
        field(self.port > 0, "a port")
    }
}

impl Report {
    fn check(&self) -> Result<(), Unfit> {
        match &self.state {
            State::Idle => Ok(()),
            State::Preparing { run } => field(is_plain_name(run), "a run"),
            State::Training { run, rank, world_size } | State::Returning { run, rank, world_size } => {
                field(is_plain_name(run) && rank < world_size, "a run")
            }
        }
    }
}

impl Examination {
    /// Makes it one that a message may carry, whatever the files of the machine say.
    #[must_use]
    pub fn shortened(self) -> Self {
        let line = |Line { what, verdict, found, advice }: Line| Line {
            what: name(&what),
            verdict,
            found: sentence(&found),
            advice: advice.map(|advice| sentence(&advice)),
        };
        let link = self.link.map(|Link { interface, speed, mtu }| Link {
            interface: name(&interface),
            speed: speed.map(|speed| name(&speed)),
            mtu,
        });
        Self { lines: self.lines.into_iter().take(MOST_LINES).map(line).collect(), link, ..self }
    }

    fn check(&self) -> Result<(), Unfit> {
        let Self { lines, link, time_us: _ } = self;
        field(lines.len() <= MOST_LINES, "a list of lines")?;
        let is_right = |line: &Line| {
            is_name(&line.what) && is_sentence(&line.found) && line.advice.as_deref().is_none_or(is_sentence)
        };
        field(lines.iter().all(is_right), "a line")?;
        let is_right = |link: &Link| is_name(&link.interface) && link.speed.as_deref().is_none_or(is_name);
        field(link.as_ref().is_none_or(is_right), "a link")
    }
}

impl Job {
    pub(super) fn check(&self) -> Result<(), Unfit> {
        let Self { run, build, rank, world_size, port, token, swarm: _, folders } = self;
        field(is_plain_name(run), "a run")?;
        field(is_hex(build, 64), "a build")?;
        field((2..=MOST_MEMBERS).contains(world_size) && (1..*world_size).contains(rank), "a rank")?;
        field(*port > 0, "a port")?;
        field(is_hex(token, 64), "a token")?;
        field((1..=2).contains(&folders.len()), "folders")?;
        folders.iter().try_for_each(Folder::check)
    }
}

impl Folder {
    fn check(&self) -> Result<(), Unfit> {
        let is_path = self.path.len() <= LONGEST_PATH && !self.path.contains('\0');
        field(is_path && Path::new(&self.path).is_absolute(), "a folder")?;
        field((1..=MOST_FILES).contains(&self.files.len()), "a list of files")?;
        for (at, file) in self.files.iter().enumerate() {
            field(is_file_name(&file.name) && is_hex(&file.blake3, 64), "a file")?;
            field(self.files[..at].iter().all(|other| other.name != file.name), "a file twice")?;
        }
        let total = self.files.iter().try_fold(0_u64, |sum, file| sum.checked_add(file.bytes));
        field(total.is_some(), "a size")
    }

    /// Returns the hash of names, sizes and hashes: two folders that have it have the same files.
    pub fn digest(&self) -> blake3::Hash {
        let mut files: Vec<_> =
            self.files.iter().map(|file| (&file.name, file.bytes, &file.blake3)).collect();
        files.sort();
        blake3::hash(&serde_json::to_vec(&files).expect("names and numbers serialise"))
    }

    /// Returns the size of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}

fn field(is_right: bool, what: &'static str) -> Result<(), Unfit> {
    if is_right { Ok(()) } else { Err(Unfit::Field(what)) }
}

fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Returns whether this can be shown as it is.
fn is_plain(text: &str) -> bool {
    !text.contains('\n') && !text.chars().any(is_active)
}

fn is_name(text: &str) -> bool {
    (1..=LONGEST_NAME).contains(&text.len()) && is_plain(text)
}

fn is_sentence(text: &str) -> bool {
    text.len() <= LONGEST_SENTENCE && is_plain(text)
}

/// Returns whether this is the name of a file in a folder, and neither hidden nor elsewhere.
fn is_file_name(text: &str) -> bool {
    let is_one = matches!(Path::new(text).components().collect::<Vec<_>>()[..], [Component::Normal(_)]);
    is_one
        && text.len() <= 200
        && !text.starts_with('.')
        && !text.contains(['/', '\\', '\0'])
        && is_plain(text)
}

/// Makes a text of any origin one that a message may carry.
pub fn sentence(text: &str) -> String {
    shortened(text, LONGEST_SENTENCE)
}

/// The same for a name.
pub fn name(text: &str) -> String {
    shortened(text, LONGEST_NAME)
}

fn shortened(text: &str, most: usize) -> String {
    let mut short = String::new();
    for c in text.trim().chars().map(|c| if c == '\n' || is_active(c) { ' ' } else { c }) {
        if short.len() + c.len_utf8() > most {
            break;
        }
        short.push(c);
    }
    short
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::doctor::Verdict;

    fn job() -> Job {
        let file = FileEntry { name: "config.json".into(), bytes: 3, blake3: "a".repeat(64) };
        Job {
            run: "20261127T200000Z-a-lora-c691".into(),
            build: "b".repeat(64),
            rank: 1,
            world_size: 2,
            port: 29_500,
            token: "c".repeat(64),
            swarm: false,
            folders: vec![Folder { path: "/models/a".into(), files: vec![file] }],
        }
    }

    fn read(job: &Job) -> Result<Ask, Unfit> {
        Ask::parse(&serde_json::to_vec(&Ask::Prepare(job.clone())).unwrap())
    }

    #[test]
    fn a_job_is_read_as_it_was_written_and_its_token_is_not_shown() {
        assert_eq!(read(&job()), Ok(Ask::Prepare(job())));
        assert!(!format!("{:?}", job()).contains("cccc"));
    }

    #[test]
    fn a_job_that_leads_out_of_its_folders_or_cannot_be_is_refused() {
        let file = |name: &str| {
            let mut job = job();
            name.clone_into(&mut job.folders[0].files[0].name);
            job
        };
        for name in ["", ".", "..", "../x", "a/b", "/etc/passwd", ".hidden", "a\0b", "a\u{1b}[2J", "a\\b"] {
            assert_eq!(read(&file(name)), Err(Unfit::Field("a file")), "{name:?}");
        }
        for run in ["", "..", "a/b", "a b", ".rank"] {
            assert_eq!(read(&Job { run: run.into(), ..job() }), Err(Unfit::Field("a run")), "{run:?}");
        }
        for rank in [0, 2] {
            assert_eq!(read(&Job { rank, ..job() }), Err(Unfit::Field("a rank")));
        }
        let mut twice = job();
        let first = twice.folders[0].files[0].clone();
        twice.folders[0].files.push(first);
        assert_eq!(read(&twice), Err(Unfit::Field("a file twice")));
        assert_eq!(read(&Job { folders: Vec::new(), ..job() }), Err(Unfit::Field("folders")));
    }

    #[test]
    fn an_examination_is_made_fit_by_its_sender_and_otherwise_refused_by_its_reader() {
        let long = "\u{1b}[2J".repeat(1000);
        let line = Line::new("MTU", Verdict::Ok, &*long).advice(&*long);
        let link = Link { interface: "eth\u{1b}0".into(), speed: Some(long), mtu: Some(1500) };
        let wild = Examination { lines: vec![line; MOST_LINES + 1], link: Some(link), time_us: u64::MAX };
        let read = |examination: &Examination| {
            let bytes = serde_json::to_vec(&Answer::Examined(examination.clone())).unwrap();
            assert!(bytes.len() < 1 << 16 || examination == &wild, "it does not fit into a message");
            Answer::parse(&bytes)
        };
        let fit = wild.clone().shortened();
        assert_eq!(read(&fit), Ok(Answer::Examined(fit.clone())));
        assert_eq!((fit.lines.len(), fit.link.as_ref().unwrap().interface.as_str()), (MOST_LINES, "eth 0"));
        assert_eq!(read(&wild), Err(Unfit::Field("a list of lines")));
        let lines = wild.lines[..1].to_vec();
        assert_eq!(read(&Examination { lines, ..fit.clone() }), Err(Unfit::Field("a line")));
        assert_eq!(read(&Examination { link: wild.link.clone(), ..fit }), Err(Unfit::Field("a link")));
    }

    #[test]
    fn a_folder_is_known_by_its_files_in_any_order() {
        let mut folder = job().folders.remove(0);
        folder.files.push(FileEntry { name: "b".into(), bytes: 1, blake3: "d".repeat(64) });
        let digest = folder.digest();
        folder.files.reverse();
        folder.path = "/elsewhere".into();
        assert_eq!(folder.digest(), digest);
        folder.files[0].bytes += 1;
        assert_ne!(folder.digest(), digest);
    }

    #[test]
    fn nobody_is_sent_to_an_address_that_no_machine_has() {
        let read = |at: &str| {
            let at = at.parse().unwrap();
            Answer::parse(&serde_json::to_vec(&Answer::Elsewhere { at }).unwrap())
        };
        for wrong in ["0.0.0.0:7300", "[::]:7300", "239.255.72.73:7300", "10.0.0.7:0"] {
            assert_eq!(read(wrong), Err(Unfit::Field("an address")), "{wrong}");
        }
        assert!(read("10.0.0.7:7300").is_ok() && read("[fd00::2]:7300").is_ok());
    }

    proptest! {
        #[test]
        fn any_text_can_be_said_once_it_is_made_a_sentence(text: String) {
            prop_assert!(is_sentence(&sentence(&text)));
            prop_assert!(name(&text).is_empty() || is_name(&name(&text)));
        }

        #[test]
        fn any_bytes_are_a_message_or_a_reason(bytes: Vec<u8>) {
            let _ = Ask::parse(&bytes);
            let _ = Answer::parse(&bytes);
        }
    }
}
