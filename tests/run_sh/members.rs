//! What `run.sh --docker` gives to members of a cluster and to ranks, and what it gives to nobody else.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::{Machine, has, line, stderr, stdout};

/// The variables by which rank 0 is told to add in the kernel.
const IN_THE_KERNEL: [(&str, &str); 2] =
    [("SPARKTUNE_CLUSTER_ENGINE", "xdp"), ("SPARKTUNE_XDP_INTERFACES", "eth0")];
/// The variable by which another rank is told to take results by AF_XDP.
const BY_AF_XDP: (&str, &str) = ("SPARKTUNE_AF_XDP_INTERFACE", "eth0");
/// Someone who is not root and is not known to this machine.
const ID: &str = "#!/bin/sh\ncase $1 in -u) echo 4321 ;; -g) echo 4322 ;; esac\n";
/// The capabilities, as bits, with which root becomes somebody else. Every container has them.
const OF_ROOT: [(&str, u64); 3] = [("setgid", 1 << 6), ("setuid", 1 << 7), ("setpcap", 1 << 8)];
/// The capabilities that members may get.
const OF_MEMBERS: [(&str, u64); 5] = [
    ("net_admin", 1 << 12),
    ("net_raw", 1 << 13),
    ("ipc_lock", 1 << 14),
    ("perfmon", 1 << 38),
    ("bpf", 1 << 39),
];

/// Returns how the engine was asked to make the container and to start sparktune in it, and what was said.
fn asked(engine: &str, arguments: &[&str], variables: &[(&str, &str)]) -> [String; 3] {
    let machine = Machine::with_engine(engine, false);
    machine.program("id", ID);
    let output = machine.docker(arguments, variables);
    assert!(stdout(&output).starts_with("sparktune|"), "{}", stderr(&output));
    let asked = machine.asked();
    let of = |verb: &str| line(&asked, &format!("{engine}|{verb}|")).to_owned();
    [of("run"), of("exec"), stderr(&output)]
}

/// Like [`asked`], for a training that a launcher starts with these variables, separated by spaces.
fn launched(launcher: &str, more: &[(&str, &str)]) -> [String; 3] {
    let pairs = launcher.split_whitespace().filter_map(|pair| pair.split_once('='));
    asked("docker", &["train"], &pairs.chain(more.iter().copied()).collect::<Vec<_>>())
}

#[test]
fn the_variables_of_every_launcher_reach_the_container() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
    let reader = fs::read_to_string(repository.join("src/cluster/environment.rs")).unwrap();
    let is_name = |word: &&str| word.contains(|c: char| c.is_ascii_uppercase()) && !word.contains(' ');
    let upper = |word: &&str| word.chars().all(|c| c.is_ascii_uppercase() || c == '_');
    let mut names: BTreeSet<_> = reader.split('"').filter(is_name).filter(upper).collect();
    assert!(names.contains("RANK") && names.contains("SLURM_PROCID") && names.len() > 15, "{names:?}");
    names.extend(["NCCL_DEBUG", "NCCL_IB_HCA", "NCCL_HOSTID"]);
    let variables: Vec<_> = names.iter().map(|name| (*name, "1")).collect();
    let [run, ..] = asked("docker", &["train"], &variables);
    for name in names {
        assert!(has(&run, &format!("--env|{name}")), "{name} in {run}");
    }
}

#[test]
fn a_member_of_a_cluster_gets_what_it_needs_and_others_get_nothing_of_it() {
    let devices = tempfile::tempdir().unwrap();
    let there = devices.path().to_str().unwrap();
    let flags = |arguments: &[&str], devices: &str| {
        let [run, exec, _] = asked("docker", arguments, &[("INFINIBAND_DEVICES", devices)]);
        assert!(!run.contains("--cap-add") && !exec.contains("--user"), "{run}\n{exec}");
        run
    };
    let rdma = format!("--shm-size|1g|--device|{there}|--ulimit|memlock=-1:-1");
    for arguments in [&["cluster", "join"][..], &["train", "--cluster"], &["resume", "--cluster"]] {
        let run = flags(arguments, there);
        assert!(has(&run, &rdma), "{run}");
    }
    let run = flags(&["cluster", "init"], "/nowhere");
    assert!(has(&run, "--shm-size|1g") && !run.contains("--device") && !run.contains("memlock"), "{run}");
    let run = flags(&["train", "--data", "cluster"], there);
    assert!(!["--shm-size", "--device", "memlock"].iter().any(|flag| run.contains(flag)), "{run}");
}

#[test]
fn a_rank_of_every_launcher_gets_the_same_and_whoever_trains_alone_does_not() {
    for (launcher, is_rank) in [
        ("RANK=1 WORLD_SIZE=2", true),
        ("OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4", true),
        ("SLURM_PROCID=0 SLURM_NTASKS=3", true),
        ("SLURM_PROCID=11 SLURM_STEP_NUM_TASKS=12 SLURM_NTASKS=1", true),
        ("", false),
        ("RANK=0 WORLD_SIZE=1", false),
        // torchrun may itself be started by Slurm: then only its variables say how many ranks there are.
        ("RANK=0 WORLD_SIZE=1 SLURM_PROCID=0 SLURM_NTASKS=2", false),
        ("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1", false),
        // One task of a job that has more.
        ("SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 SLURM_NTASKS=8", false),
        // A shell of `salloc`, which no step has started.
        ("SLURM_NTASKS=4", false),
        ("RANK=0 WORLD_SIZE=many", false),
    ] {
        let [run, ..] = launched(launcher, &[]);
        assert_eq!(has(&run, "--shm-size|1g"), is_rank, "{launcher}: {run}");
    }
}

#[test]
fn capabilities_are_added_only_where_the_kernel_is_used() {
    let of_kernel = "--cap-add|BPF|--cap-add|NET_ADMIN|--cap-add|PERFMON";
    let of_af_xdp = &format!("{of_kernel}|--cap-add|NET_RAW|--cap-add|IPC_LOCK");
    let both = [&IN_THE_KERNEL[..], &[BY_AF_XDP]].concat();
    let must_add = |[run, exec, said]: [String; 3], added: &str| {
        let count = added.split('|').filter(|word| *word == "--cap-add").count();
        assert_eq!(run.matches("--cap-add").count(), count, "{run}");
        assert!(count == 0 || has(&run, added), "{added} in {run}");
        assert_eq!(has(&exec, "exec|--user|0:0|c0ffee|setpriv"), count > 0, "{exec}");
        assert!(!said.contains("without --docker"), "{said}");
    };
    let agent = |variables: &[(&str, &str)]| asked("docker", &["cluster", "join"], variables);
    must_add(agent(&IN_THE_KERNEL), of_kernel);
    must_add(agent(&IN_THE_KERNEL[..1]), "");
    must_add(agent(&IN_THE_KERNEL[1..]), "");
    must_add(agent(&[BY_AF_XDP]), of_af_xdp);
    must_add(asked("docker", &["train"], &both), "");
    for rank_of in ["RANK=# WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK=# OMPI_COMM_WORLD_SIZE=2"] {
        let [first, second] = ["0", "1"].map(|rank| rank_of.replace('#', rank));
        must_add(launched(&first, &both), of_kernel);
        must_add(launched(&first, &[BY_AF_XDP]), "");
        must_add(launched(&second, &both), of_af_xdp);
        must_add(launched(&second, &IN_THE_KERNEL), "");
    }
}

#[test]
fn an_engine_that_cannot_give_rights_is_not_asked_for_them_and_run_sh_says_why() {
    let devices = tempfile::tempdir().unwrap();
    let there = devices.path().to_str().unwrap();
    let hard_limit = Command::new("bash").args(["-c", "ulimit -H -l"]).output().unwrap();
    let bytes = match stdout(&hard_limit).trim() {
        "unlimited" => "-1".to_owned(),
        kilobytes => (kilobytes.parse::<u64>().unwrap() * 1024).to_string(),
    };
    for (engine, info, limit) in [
        ("docker", r#"{"runc":{}} ["name=seccomp","name=rootless"]"#, None),
        ("docker", r#"{"runc":{}} ["name=seccomp","name=no-new-privileges"]"#, Some("-1")),
        ("podman", "rootless=true", Some(bytes.as_str())),
    ] {
        let place = [("INFINIBAND_DEVICES", there), ("INFO", info)];
        let variables = [&place[..], &IN_THE_KERNEL, &[BY_AF_XDP]].concat();
        let [run, exec, said] = asked(engine, &["cluster", "join"], &variables);
        assert!(said.contains("takes no programs") && said.contains("without --docker"), "{said}");
        assert!(!run.contains("--cap-add") && !exec.contains("--user"), "{run}\n{exec}");
        assert!(has(&run, &format!("--device|{there}")), "{run}");
        let limit = limit.map(|bytes| format!("--ulimit|memlock={bytes}:{bytes}"));
        assert_eq!(limit.as_ref().is_some_and(|limit| has(&run, limit)), run.contains("memlock"), "{run}");
        assert_eq!(limit.is_some(), run.contains("memlock"), "{run}");
    }
    let [run, _, said] = asked("podman", &["cluster", "join"], &[("INFO", "rootless=false"), BY_AF_XDP]);
    assert!(run.contains("--cap-add") && !said.contains("without --docker"), "{run}\n{said}");
}

/// Starts a process as the container would start sparktune: by root, with the capabilities of the container.
/// Returns what the kernel says about it.
fn started(run: &str, exec: &str) -> String {
    let added = run.split('|').zip(run.split('|').skip(1)).filter(|(flag, _)| *flag == "--cap-add");
    let added = added.map(|(_, name)| name.to_lowercase());
    let of_root = OF_ROOT.iter().map(|(name, _)| (*name).to_owned());
    let bounds: String = of_root.chain(added).map(|name| format!(",+{name}")).collect();
    let words = exec.split('|').skip_while(|word| *word != "c0ffee").skip(1);
    let words = words.take_while(|word| *word != "sh");
    let mut command = Command::new("setpriv");
    command.arg(format!("--bounding-set=-all{bounds}")).arg("--inh-caps=-all");
    let output = command.args(words).args(["cat", "/proc/self/status"]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output)
}

/// Returns what the kernel says about a process under this name.
fn said_of<'a>(status: &'a str, name: &str) -> &'a str {
    let found = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    found.unwrap_or_else(|| panic!("no {name} in\n{status}")).trim()
}

fn bits(status: &str, name: &str) -> u64 {
    u64::from_str_radix(said_of(status, name), 16).unwrap()
}

#[test]
fn sparktune_has_these_capabilities_and_no_others_without_being_root() {
    let own = fs::read_to_string("/proc/self/status").unwrap();
    let needed = OF_ROOT.iter().chain(&OF_MEMBERS).map(|(_, bit)| bit).sum::<u64>();
    let to_another = ["--reuid", "4321", "--regid", "4322", "--clear-groups", "true"];
    let becomes = Command::new("setpriv").args(to_another).output();
    if !becomes.is_ok_and(|output| output.status.success()) || bits(&own, "CapBnd") & needed != needed {
        println!("skipped: this needs root with all of its capabilities, and setpriv of util-linux");
        return;
    }
    for (variables, left_out) in [(&IN_THE_KERNEL[..], &["net_raw", "ipc_lock"][..]), (&[BY_AF_XDP], &[])] {
        let [run, exec, _] = asked("docker", &["cluster", "join"], variables);
        let status = started(&run, &exec);
        let of_members = OF_MEMBERS.iter().filter(|(name, _)| !left_out.contains(name));
        let wanted = of_members.map(|(_, bit)| bit).sum::<u64>();
        for set in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
            assert_eq!(bits(&status, set), wanted, "{set} in\n{status}");
        }
        assert_eq!(said_of(&status, "Uid"), "4321\t4321\t4321\t4321");
        assert_eq!(said_of(&status, "Gid"), "4322\t4322\t4322\t4322");
        assert_eq!((said_of(&status, "Groups"), said_of(&status, "NoNewPrivs")), ("", "1"));
    }
}
