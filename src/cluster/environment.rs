//! What a launcher says about this process: the environments of torchrun, Open MPI and Slurm.
//!
//! Pure: variables enter, a [`Placement`] or a refusal leaves. A set that is incomplete or contradicts itself
//! is refused, because a process that trains alone by mistake would waste what the others wait for. Variables
//! of torchrun come first, because torchrun is itself started by the others.

use std::fmt;
use std::ops::Range;

use sparktune_base::escape::escape;

use crate::error::Error;

/// Who said where this process belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Launcher {
    /// torchrun, or somebody who set the same variables.
    Torchrun,
    /// Open MPI's mpirun.
    OpenMpi,
    /// Slurm's srun.
    Slurm,
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Torchrun => "torchrun's variables",
            Self::OpenMpi => "Open MPI",
            Self::Slurm => "Slurm",
        })
    }
}

/// The place of this process among the ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// The number of this rank, from 0.
    pub rank: usize,
    /// The number of ranks, at least 2.
    pub world_size: usize,
    /// The number of this rank among those of its machine.
    pub local_rank: usize,
    /// Where rank 0 listens.
    pub host: String,
    /// The port of rank 0.
    pub port: u16,
    /// Who said so.
    pub launcher: Launcher,
}

/// The most ranks. Each one has a connection to every other.
const MOST_RANKS: usize = 256;

/// The port of Open MPI's jobs without MASTER_PORT, torchrun's default.
const PORT: u16 = 29_500;
/// The ports that are chosen for a rank 0: below those that Linux gives to connections by itself, from 32,768
/// on (`net.ipv4.ip_local_port_range`). Such a connection could take the port before rank 0 listens, or while
/// the ranks work, after which nobody could listen there who takes rank 0's place.
pub(crate) const OF_FIRST: Range<u16> = 20_000..26_000;

const FIX: &str = "Start all ranks with torchrun, srun or mpirun; to train alone, unset these variables";

impl Placement {
    /// Reads the variables of a launcher. Returns `None` for a process that trains alone.
    ///
    /// # Errors
    /// They are incomplete or contradict each other.
    pub fn from_environment(get: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, Error> {
        let variables = Variables { get: &get };
        let placement = if variables.has("RANK") || variables.has("WORLD_SIZE") {
            variables.of_torchrun()?
        } else if variables.has("OMPI_COMM_WORLD_RANK") || variables.has("OMPI_COMM_WORLD_SIZE") {
            variables.of_open_mpi()?
        } else if variables.has("SLURM_PROCID") {
            variables.of_slurm()?
        } else {
            None
        };
        let Some(placement) = placement else { return Ok(None) };
        let Self { rank, world_size, local_rank, .. } = placement;
        let refused = |what: String| Err(Error::Environment { what, fix: FIX });
        if rank >= world_size {
            return refused(format!(
                "according to {}, this is rank {rank} of {world_size}, but ranks are counted from 0",
                placement.launcher
            ));
        }
        if local_rank >= world_size {
            return refused(format!(
                "according to {}, this is rank {local_rank} of its machine, but there are {world_size} ranks in all",
                placement.launcher
            ));
        }
        if world_size > MOST_RANKS {
            return refused(format!("{world_size} ranks are more than the {MOST_RANKS} that are supported"));
        }
        Ok((world_size > 1).then_some(placement))
    }
}

/// Returns the variables that make a process this rank: those of torchrun.
pub fn environment_of(rank: usize, world_size: usize, host: &str, port: u16) -> Vec<(String, String)> {
    let values = [
        ("RANK", rank.to_string()),
        ("WORLD_SIZE", world_size.to_string()),
        ("LOCAL_RANK", "0".to_owned()),
        ("MASTER_ADDR", host.to_owned()),
        ("MASTER_PORT", port.to_string()),
        // Variables of a launcher that started the agent itself would be taken for those of the ranks.
        ("TORCHELASTIC_USE_AGENT_STORE", "False".to_owned()),
    ];
    values.map(|(name, value)| (name.to_owned(), value)).into()
}

struct Variables<'a> {
    get: &'a dyn Fn(&str) -> Option<String>,
}

impl Variables<'_> {
    fn text(&self, name: &str) -> Option<String> {
        (self.get)(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    fn has(&self, name: &str) -> bool {
        self.text(name).is_some()
    }

    fn number<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, Error> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let what = || format!("{name} is \"{}\", which is not a number that is valid there", escape(&text));
        text.parse().map(Some).map_err(|_| Error::Environment { what: what(), fix: FIX })
    }

    fn required<T: std::str::FromStr>(&self, name: &str, beside: &str) -> Result<T, Error> {
        let what = || format!("{beside} is set, but {name} is not");
        self.number(name)?.ok_or_else(|| Error::Environment { what: what(), fix: FIX })
    }

    fn port(&self) -> Result<Option<u16>, Error> {
        match self.number("MASTER_PORT")? {
            Some(0) => Err(Error::Environment { what: "MASTER_PORT is 0".into(), fix: FIX }),
            port => Ok(port),
        }
    }

    /// Returns where rank 0 is, if these variables say it: on this machine if that has all ranks.
    fn host(&self, has_all: bool) -> Option<String> {
        self.text("MASTER_ADDR").or_else(|| has_all.then(|| "127.0.0.1".to_owned()))
    }

    fn of_torchrun(&self) -> Result<Option<Placement>, Error> {
        let rank = self.required("RANK", "WORLD_SIZE")?;
        let world_size = self.required("WORLD_SIZE", "RANK")?;
        let local_rank = self.number("LOCAL_RANK")?.unwrap_or(0);
        let launcher = Launcher::Torchrun;
        if world_size == 1 {
            let host = String::new();
            return Ok(Some(Placement { rank, world_size, local_rank, host, port: 0, launcher }));
        }
        let host = self.text("MASTER_ADDR").ok_or_else(|| Error::Environment {
            what: "RANK is set, but MASTER_ADDR is not".into(),
            fix: "Set it to the host of rank 0, the same for all ranks; to train alone, unset RANK and WORLD_SIZE",
        })?;
        let port = self.port()?.ok_or_else(|| Error::Environment {
            what: "RANK is set, but MASTER_PORT is not".into(),
            fix: "Set it to a free port of rank 0's machine, the same for all ranks, for example 29500; to train alone, unset RANK and WORLD_SIZE",
        })?;
        // torchrun's agent then listens on MASTER_PORT itself.
        let is_taken = self.text("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|text| text == "True");
        let port = if is_taken { port.checked_add(1).unwrap_or(port - 1) } else { port };
        Ok(Some(Placement { rank, world_size, local_rank, host, port, launcher }))
    }

    fn of_open_mpi(&self) -> Result<Option<Placement>, Error> {
        let [rank_name, size_name] = ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"];
        let rank = self.required(rank_name, size_name)?;
        let world_size = self.required(size_name, rank_name)?;
        let local_rank = self.number("OMPI_COMM_WORLD_LOCAL_RANK")?.unwrap_or(0);
        let is_one_machine = self.number("OMPI_COMM_WORLD_LOCAL_SIZE")? == Some(world_size);
        let host = self.host(is_one_machine || world_size == 1).ok_or_else(|| {
            let what =
                "mpirun started ranks on several machines, but does not say where rank 0 is".to_owned();
            Error::Environment { what, fix: "Add `-x MASTER_ADDR=HOST`, with the host of rank 0" }
        })?;
        let port = self.port()?.unwrap_or(PORT);
        Ok(Some(Placement { rank, world_size, local_rank, host, port, launcher: Launcher::OpenMpi }))
    }

    fn of_slurm(&self) -> Result<Option<Placement>, Error> {
        let rank = self.required("SLURM_PROCID", "SLURM_NTASKS")?;
        let is_step =
            ["SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID", "SLURM_STEPID"].iter().any(|name| self.has(name));
        let tasks = self.number("SLURM_STEP_NUM_TASKS")?.or(self.number("SLURM_NTASKS")?);
        // A job that was submitted without a number of tasks has one on each node.
        let tasks = if is_step { tasks } else { tasks.or(self.number("SLURM_NNODES")?) };
        let world_size = tasks.map_or_else(|| self.required("SLURM_NTASKS", "SLURM_PROCID"), Ok)?;
        let local_rank = self.number("SLURM_LOCALID")?.unwrap_or(0);
        if world_size > 1 && !is_step {
            return Err(Error::Environment {
                what: format!(
                    "this job has {world_size} tasks, but this process was started once, by the batch script"
                ),
                fix: "Start it with `srun`, which starts every task; or ask for one task",
            });
        }
        let is_one_machine = self.number("SLURM_STEP_NUM_NODES")? == Some(1);
        let nodes = || self.text("SLURM_STEP_NODELIST").or_else(|| self.text("SLURM_JOB_NODELIST"));
        let host = self.host(is_one_machine || world_size == 1).or_else(|| first_node(&nodes()?));
        let host = host.ok_or_else(|| {
            let what =
                "SLURM_PROCID is set, but neither MASTER_ADDR nor SLURM_JOB_NODELIST says where rank 0 is";
            Error::Environment { what: what.into(), fix: FIX }
        })?;
        // Steps of a job, and jobs, may have their rank 0 on the same node at the same time.
        let step: u64 = self.number("SLURM_STEP_ID")?.unwrap_or(0);
        let ports = OF_FIRST.len() as u64;
        let of_step = |job: u64| OF_FIRST.start + ((job % ports + step % 10 * (ports / 10)) % ports) as u16;
        let port = match self.port()? {
            Some(port) => port,
            None => self.number("SLURM_JOB_ID")?.map_or(PORT, of_step),
        };
        Ok(Some(Placement { rank, world_size, local_rank, host, port, launcher: Launcher::Slurm }))
    }
}

/// Returns the first host of a list in Slurm's short form: `spark[03-07,12],other` is `spark03`. `None` if it
/// has no name.
fn first_node(list: &str) -> Option<String> {
    let end = list.find([',', '[']).unwrap_or(list.len());
    let (prefix, rest) = list.split_at(end);
    let inside = rest.strip_prefix('[').unwrap_or_default();
    let digits = inside.find(|c: char| !c.is_ascii_digit()).unwrap_or(inside.len());
    let suffix = inside.split_once(']').map_or("", |(_, after)| after);
    let suffix = &suffix[..suffix.find([',', '[']).unwrap_or(suffix.len())];
    let name = format!("{prefix}{}{suffix}", &inside[..digits]);
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &str) -> Result<Option<Placement>, String> {
        let get = |name: &str| {
            let pairs = variables.split(' ').filter_map(|pair| pair.split_once('='));
            pairs.into_iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
        };
        Placement::from_environment(get).map_err(|error| error.to_string())
    }

    fn placed(variables: &str) -> (usize, usize, usize, String, u16) {
        let Placement { rank, world_size, local_rank, host, port, .. } = read(variables).unwrap().unwrap();
        (rank, world_size, local_rank, host, port)
    }

    const TORCHRUN: &str = "RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 MASTER_ADDR=spark1 MASTER_PORT=29400";

    #[test]
    fn torchruns_variables_are_understood_and_its_own_port_is_left_to_it() {
        assert_eq!(placed(TORCHRUN), (1, 4, 1, "spark1".into(), 29_400));
        let agents = format!("{TORCHRUN} TORCHELASTIC_USE_AGENT_STORE=True");
        assert_eq!(placed(&agents).4, 29_401);
        // torchrun may itself be started by Slurm, which counts machines then.
        assert_eq!(placed(&format!("{TORCHRUN} SLURM_PROCID=0 SLURM_NTASKS=2")).0, 1);
        assert_eq!(read("RANK=0 WORLD_SIZE=1 LOCAL_RANK=0"), Ok(None), "alone");
        assert_eq!(read("MASTER_ADDR=spark1"), Ok(None));
    }

    #[test]
    fn the_variables_of_a_rank_are_read_as_they_were_meant() {
        let variables = environment_of(1, 3, "10.0.0.7", 4000);
        let get = |name: &str| variables.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
        let placement = Placement::from_environment(get).unwrap().unwrap();
        let Placement { rank, world_size, local_rank, host, port, .. } = placement;
        assert_eq!((rank, world_size, local_rank, host.as_str(), port), (1, 3, 0, "10.0.0.7", 4000));
    }

    #[test]
    fn slurms_variables_are_understood() {
        let step = "SLURM_PROCID=2 SLURM_STEP_NUM_TASKS=3 SLURM_NTASKS=8 SLURM_LOCALID=0 SLURM_JOB_ID=70123";
        let nodes = |list: &str| placed(&format!("{step} SLURM_JOB_NODELIST={list}"));
        assert_eq!(nodes("spark[03-05,12]"), (2, 3, 0, "spark03".into(), 24_123));
        assert_eq!(nodes("a SLURM_STEP_ID=12").4, 25_323);
        assert_eq!(nodes("a,b,c").3, "a");
        assert_eq!(nodes("rack1-n[7]-ib,x").3, "rack1-n7-ib");
        let nowhere = read(&format!("{step} SLURM_JOB_NODELIST=,spark[03-05]")).unwrap_err();
        assert!(nowhere.contains("says where rank 0 is"), "{nowhere}");
        assert_eq!(placed(&format!("{step} MASTER_ADDR=10.0.0.1 MASTER_PORT=4000")).4, 4000);
        assert_eq!(read("SLURM_PROCID=0 SLURM_NTASKS=1"), Ok(None));
        let older = "SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEPID=0 SLURM_JOB_NODELIST=n[1-2]";
        assert_eq!(placed(older), (1, 2, 0, "n1".into(), PORT));
    }

    #[test]
    fn open_mpis_variables_are_understood() {
        let ranks = "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1";
        let here = format!("{ranks} OMPI_COMM_WORLD_LOCAL_SIZE=4");
        assert_eq!(placed(&here), (3, 4, 1, "127.0.0.1".into(), PORT));
        let there = format!("{ranks} OMPI_COMM_WORLD_LOCAL_SIZE=2");
        assert!(read(&there).unwrap_err().contains("-x MASTER_ADDR"));
        let told = format!("{there} MASTER_ADDR=spark1 MASTER_PORT=4000");
        assert_eq!(placed(&told), (3, 4, 1, "spark1".into(), 4000));
    }

    #[test]
    fn what_real_launchers_have_set_is_understood() {
        let recorded = include_str!("../../tests/fixtures/launchers.txt");
        let records: Vec<_> = recorded.split("\n\n").skip(1).collect();
        assert!(records.len() > 15, "{}", records.len());
        for record in records {
            let [title, expected, variables] =
                record.trim().splitn(3, '\n').collect::<Vec<_>>().try_into().unwrap();
            let said = match read(&variables.replace('\n', " ")) {
                Ok(None) => "alone".to_owned(),
                Ok(Some(Placement { rank, world_size, local_rank, host, port, .. })) => {
                    format!("rank {rank} of {world_size}, {local_rank} of its machine, by {host}:{port}")
                }
                Err(refused) => refused,
            };
            assert_eq!(format!("-> {said}"), expected, "{title}");
        }
    }

    #[test]
    fn half_sets_and_contradictions_are_refused_in_words() {
        for (variables, word) in [
            ("RANK=1", "WORLD_SIZE is not"),
            ("WORLD_SIZE=2", "RANK is not"),
            ("RANK=1 WORLD_SIZE=2", "MASTER_ADDR is not. Set it to the host of rank 0"),
            ("RANK=1 WORLD_SIZE=2 MASTER_ADDR=a", "MASTER_PORT is not. Set it to a free port"),
            ("RANK=1 WORLD_SIZE=2 MASTER_ADDR=a", "MASTER_PORT is not"),
            ("RANK=2 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=1", "rank 2 of 2"),
            ("RANK=x WORLD_SIZE=2", "RANK is \"x\""),
            ("RANK=-1 WORLD_SIZE=2", "RANK is \"-1\""),
            ("RANK=1 WORLD_SIZE=2 LOCAL_RANK=2 MASTER_ADDR=a MASTER_PORT=1", "rank 2 of its machine"),
            ("RANK=1 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=99999", "MASTER_PORT is \"99999\""),
            ("RANK=1 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=0", "MASTER_PORT is 0"),
            ("RANK=1 WORLD_SIZE=999 MASTER_ADDR=a MASTER_PORT=1", "999 ranks"),
            ("OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE is not"),
            ("OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK is not"),
            ("SLURM_PROCID=0", "SLURM_NTASKS is not"),
            ("SLURM_PROCID=0 SLURM_NTASKS=4", "Start it with `srun`"),
            ("SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=4", "says where rank 0 is"),
        ] {
            let said = read(variables).unwrap_err();
            assert!(said.contains(word), "{variables}: {said}");
        }
        let said = read("RANK=\u{1b}[2J WORLD_SIZE=2").unwrap_err();
        assert!(!said.contains('\u{1b}'), "{said:?}");
    }
}
