//! Rows of the measured engines, and of what ainftp claims of sums in the kernel, each with a verdict.

use crate::cluster::measured::{LATE_MS, Measured, PerPacket, RANKS, bytes_in_packet};
use crate::cluster::rank::Engine;
use crate::row::{Row, Target};

/// The packets that one wake-up is to handle, at least.
const PER_WAKE: f64 = 32.0;

/// What an engine is called in the rows.
pub(crate) fn name(engine: Engine) -> &'static str {
    match engine {
        Engine::Tcp => "tcp: exact sums",
        Engine::Nccl => "nccl: exact sums on the GPU",
        Engine::User => "xdp in user space: sums of i16",
        Engine::Kernel => "xdp in the kernel: sums of i16",
        Engine::AfXdp => "xdp in the kernel, results by AF_XDP",
    }
}

/// The rows of one engine.
pub(crate) fn rows(measured: &Measured, numbers: usize) -> Vec<Row> {
    let Measured { engine, seconds, cpu, bytes_per_number, wakes, packets, resent, asked, .. } = *measured;
    let speed = numbers as f64 * 4.0 / seconds / 1e6;
    let share =
        if engine == Engine::Nccl { " on one GPU (the numbers are copied to it and back)" } else { "" };
    let note = format!(
        "{RANKS} ranks{share}, {numbers} numbers, as bytes of f32; {bytes_per_number:.2} bytes per number and rank on the way, {:.1} MB/s of them",
        bytes_per_number * numbers as f64 / seconds / 1e6
    );
    let mut rows = vec![
        Row::new(name(engine), speed, "MB/s", note),
        Row::new("  processors per 10⁹ numbers", cpu, "s", "user and system time of all ranks"),
    ];
    if packets > 0 {
        let switch = if engine == Engine::User {
            "with those of the switch, which is a thread of rank 0"
        } else {
            "the switch, which is the kernel, wakes nobody"
        };
        let asked =
            if asked > 0 { format!(", rank 0 asked its kernel {asked} times") } else { String::new() };
        let note = format!("{packets} packets sent and results taken, {resent} sent again{asked}; {switch}");
        let per_wake = packets as f64 / wakes.max(1) as f64;
        let row = Row::new("  packets for each wake-up", per_wake, "", note);
        rows.push(row.with_target(Target::AtLeast(PER_WAKE)));
    } else {
        rows.push(Row::new("  wake-ups", wakes as f64, "", "of all threads, in all sums"));
    }
    rows
}

/// The claims, held against TCP in the same run.
pub(crate) fn of_claims(all: &[Measured], per_packet: Result<&PerPacket, &String>) -> Vec<Row> {
    let find = |engine| all.iter().find(|measured: &&Measured| measured.engine == engine);
    let (Some(tcp), Some(kernel)) = (find(Engine::Tcp), find(Engine::Kernel)) else {
        let why = "UNKNOWN: the kernel's sums did not run beside TCP here";
        return vec![Row::new("ainftp's claims", f64::NAN, "", why)];
    };
    let claim = |what: &str, value: f64, unit: &'static str, note: String| {
        Row::new(format!("ainftp, {what}"), value, unit, note)
    };
    let unknown = |what: &str, why: &str| claim(what, f64::NAN, "", format!("UNKNOWN: {why}"));
    let faster = tcp.seconds / kernel.seconds;
    let of_bytes = kernel.bytes_per_number / tcp.bytes_per_number;
    let mut rows = vec![
        claim(
            "bandwidth: bytes of TCP's for each of ours",
            tcp.bytes_per_number / kernel.bytes_per_number,
            "×",
            format!(
                "{:.2} and {:.2} bytes per number and rank, {:.0} % of TCP's; \"98 % less\" {}. 16 bits are half of f32 and as many as bf16; a packet has {:.2} bytes per number",
                tcp.bytes_per_number,
                kernel.bytes_per_number,
                of_bytes * 100.0,
                verdict(of_bytes <= 0.02),
                bytes_in_packet()
            ),
        ),
        claim(
            "latency: time of TCP for each of ours, 4,096 numbers",
            tcp.small_seconds / kernel.small_seconds,
            "×",
            format!(
                "{:.0} and {:.0} µs; lower latency {}",
                tcp.small_seconds * 1e6,
                kernel.small_seconds * 1e6,
                verdict(is_clearly_less(kernel.small_seconds, tcp.small_seconds))
            ),
        ),
    ];
    rows.push(match (tcp.interrupts, kernel.interrupts) {
        (Some(theirs), Some(ours)) => claim(
            "interrupts: TCP's for each of ours",
            theirs as f64 / ours.max(1) as f64,
            "×",
            format!(
                "{theirs} and {ours} soft interrupts for received packets of the whole machine; fewer {}. A network card's own interrupts are UNKNOWN: there is none",
                verdict(is_clearly_less(ours as f64, theirs as f64))
            ),
        ),
        _ => unknown("interrupts", "this system does not count them"),
    });
    rows.push(claim(
        "CPU: TCP's for each of ours",
        tcp.cpu / kernel.cpu,
        "×",
        format!(
            "{:.2} and {:.2} s per 10⁹ numbers; less CPU {}. TCP's includes TLS, ours the tags",
            tcp.cpu,
            kernel.cpu,
            verdict(is_clearly_less(kernel.cpu, tcp.cpu))
        ),
    ));
    rows.push(claim(
        "copies of a packet's values at the switch",
        1.0,
        "",
        "by the source, not measured, because neither the kernel nor its program counts copies: added in place in the frame, copied once into the result; ranks copy each packet twice on its way out, into the buffer of packets that leave together and into a socket, and once on its way in: out of a socket, or, by the kernel, into a frame of AF_XDP. \"Zero\" does not hold".to_owned(),
    ));
    rows.push(match (&tcp.tlb_misses, &kernel.tlb_misses) {
        (Ok(theirs), Ok(ours)) if *ours > 0.0 => {
            let by_af_xdp = find(Engine::AfXdp).and_then(|measured| measured.tlb_misses.as_ref().ok());
            let by_af_xdp = by_af_xdp
                .map_or_else(String::new, |misses| format!(", and {misses:.2} with results by AF_XDP"));
            claim(
                "dTLB misses: TCP's for each of ours",
                theirs / ours,
                "×",
                format!(
                    "{theirs:.2} and {ours:.2} per 1,000 numbers{by_af_xdp}, of reads in user space; fewer {}. Only results by AF_XDP come into huge pages, where some are reserved",
                    verdict(is_clearly_less(*ours, *theirs))
                ),
            )
        }
        (Ok(_), Ok(_)) => unknown("dTLB misses", "the processor's counter stays at 0"),
        (Err(why), _) | (_, Err(why)) => unknown("dTLB misses", why),
    });
    rows.push(match per_packet {
        Ok(cost) => claim(
            "cost of the check of a packet",
            cost.unsigned.saturating_sub(cost.unfit) as f64,
            "ns",
            format!(
                "in the kernel: {} ns with a wrong field, {} with a wrong tag, {} for a duplicate, {} with a result, which is signed (that one has the clock's cost). The check is {:.0} % of a duplicate's cost; that it is free {}",
                cost.unfit,
                cost.unsigned,
                cost.duplicate,
                cost.resent,
                cost.unsigned.saturating_sub(cost.unfit) as f64 / cost.duplicate.max(1) as f64 * 100.0,
                verdict(!is_clearly_less(cost.unfit as f64, cost.unsigned as f64))
            ),
        ),
        Err(why) => unknown("cost of the check of a packet", why),
    });
    rows.push(claim(
        "straggler blocking: a sum for which one rank is late",
        kernel.late_seconds * 1e3,
        "ms",
        format!(
            "{:.1} ms by TCP, when it is {LATE_MS} ms late; \"no blocking\" {}. A sum of all ranks cannot be done before the last one has sent its numbers",
            tcp.late_seconds * 1e3,
            verdict(is_clearly_less(kernel.late_seconds * 1e3, LATE_MS as f64))
        ),
    ));
    rows.push(claim(
        "\"10×\": speed of TCP's sums for ours",
        faster,
        "×",
        format!("{}; both on this machine's processors", verdict(faster >= 10.0)),
    ));
    rows.push(unknown(
        "\"near-InfiniBand\"",
        "there is no InfiniBand beside it, and namespaces of one machine say nothing about the speed of a network",
    ));
    rows
}

fn verdict(is_so: bool) -> &'static str {
    if is_so { "holds here" } else { "does not hold here" }
}

/// Returns whether a value is less by more than two runs differ anyway.
fn is_clearly_less(ours: f64, theirs: f64) -> bool {
    ours < 0.9 * theirs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(engine: Engine, tlb_misses: Result<f64, String>) -> Measured {
        Measured {
            engine,
            seconds: 1.0,
            cpu: 1.0,
            bytes_per_number: 8.0,
            wakes: 0,
            tlb_misses,
            packets: 0,
            resent: 0,
            asked: 0,
            interrupts: None,
            small_seconds: 1.0,
            late_seconds: 1.0,
        }
    }

    /// The note of a claim's row, of TCP and this engine in the kernel.
    fn note(kernel: Measured, what: &str, per_packet: Result<&PerPacket, &String>) -> String {
        let all = [measured(Engine::Tcp, Ok(1.0)), kernel];
        let rows = of_claims(&all, per_packet);
        rows.into_iter().find(|row| row.what.contains(what)).unwrap().note
    }

    #[test]
    fn the_verdicts_follow_from_what_was_measured() {
        let unknown = String::new();
        let kernel = || measured(Engine::Kernel, Ok(1.0));
        // TCP has 8 bytes per number.
        for (bytes_per_number, said) in [
            (0.16, "2 % of TCP's; \"98 % less\" holds here"),
            (4.32, "54 % of TCP's; \"98 % less\" does not hold here"),
        ] {
            let note = note(Measured { bytes_per_number, ..kernel() }, "bandwidth", Err(&unknown));
            assert!(note.contains(said), "{note}");
        }
        let late = LATE_MS as f64 / 1e3;
        for (late_seconds, said) in
            [(late / 2.0, "\"no blocking\" holds here"), (late, "\"no blocking\" does not hold here")]
        {
            let note = note(Measured { late_seconds, ..kernel() }, "straggler", Err(&unknown));
            assert!(note.contains(said), "{note}");
        }
        for (unsigned, said) in [
            (20, "The check is 0 % of a duplicate's cost; that it is free holds here"),
            (1520, "The check is 94 % of a duplicate's cost; that it is free does not hold here"),
        ] {
            let cost = PerPacket { unfit: 20, unsigned, duplicate: 1600, resent: 2000 };
            let note = note(kernel(), "check of a packet", Ok(&cost));
            assert!(note.contains(said), "{note}");
        }
    }

    #[test]
    fn packets_for_each_wake_up_are_held_to_their_target() {
        let met = |packets: u64| {
            let sums = Measured { packets, wakes: 10, ..measured(Engine::User, Ok(1.0)) };
            let row = rows(&sums, 1000).into_iter().find(|row| row.what.contains("for each wake-up"));
            row.unwrap().met
        };
        assert_eq!([319, 320].map(met), [Some(false), Some(true)]);
    }

    #[test]
    fn dtlb_misses_are_compared_or_their_row_says_why_they_are_unknown() {
        let row = |tcp: Result<f64, String>, kernel: Result<f64, String>| {
            let all = [
                measured(Engine::Tcp, tcp),
                measured(Engine::Kernel, kernel),
                measured(Engine::AfXdp, Ok(0.5)),
            ];
            let rows = of_claims(&all, Err(&String::new()));
            rows.into_iter().find(|row| row.what.contains("dTLB")).unwrap()
        };
        let counted = row(Ok(3.0), Ok(2.0));
        assert_eq!(counted.value, 1.5);
        let note = "3.00 and 2.00 per 1,000 numbers, and 0.50 with results by AF_XDP, of reads in user space";
        assert!(counted.note.starts_with(&format!("{note}; fewer holds here")), "{}", counted.note);
        let refused = row(Ok(3.0), Err("no rights".into()));
        assert!(refused.value.is_nan() && refused.note == "UNKNOWN: no rights", "{refused:?}");
        assert!(row(Ok(0.0), Ok(0.0)).note.starts_with("UNKNOWN: "));
    }
}
