//! Reads files back with a decoder of their own. `tests/peers/read_tensorboard.py` shows that the real
//! TensorBoard reads them.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::event::{GpuSample, HeadEval, Phase, RunFinished, RunStarted, Warning};
use crate::lease::Lease;
use crate::proto::masked_crc;
use crate::step::Eval;
use crate::writer::EventWriter;

/// Returns the fields of a message: the number, and the value as an integer, as bytes of fixed size, or as
/// text or message.
fn fields(mut bytes: &[u8]) -> Vec<(u64, u64, &[u8])> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let (mut n, mut shift) = (0, 0);
        loop {
            let byte = bytes[0];
            *bytes = &bytes[1..];
            n |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return n;
            }
            shift += 7;
        }
    }
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let (number, len) = match key & 7 {
            0 => (varint(&mut bytes), 0),
            1 => (0, 8),
            2 => (0, varint(&mut bytes) as usize),
            5 => (0, 4),
            wire => panic!("wire type {wire}"),
        };
        let (value, rest) = bytes.split_at(len);
        bytes = rest;
        fields.push((key >> 3, number, value));
    }
    fields
}

/// Returns the contents of a file as lines: `step 3: loss/train=1.5`.
fn read(bytes: &[u8]) -> Vec<String> {
    let mut lines = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let (head, tail) = rest.split_at(12);
        assert_eq!(head[8..], masked_crc(&head[..8]).to_le_bytes(), "checksum of the length");
        let (data, tail) = tail.split_at(u64::from_le_bytes(head[..8].try_into().unwrap()) as usize);
        let (crc, tail) = tail.split_at(4);
        assert_eq!(crc, masked_crc(data).to_le_bytes(), "checksum of the data");
        rest = tail;
        let (mut step, mut what) = (0, Vec::new());
        for (number, n, value) in fields(data) {
            match number {
                1 => assert!(f64::from_le_bytes(value.try_into().unwrap()) > 1.7e9, "seconds since 1970"),
                2 => step = n,
                3 => what.push(text_of(value)),
                5 => what.extend(fields(value).into_iter().map(|(_, _, entry)| entry_of(entry))),
                7 => what.push(format!("session {:?}", fields(value)[0].1)),
                _ => panic!("field {number}"),
            }
        }
        lines.push(format!("step {step}: {}", what.join(" ")));
    }
    lines
}

fn entry_of(entry: &[u8]) -> String {
    let of = |number: u64| fields(entry).into_iter().find(|f| f.0 == number).map(|f| f.2);
    let tag = text_of(of(1).unwrap());
    if let Some(value) = of(2) {
        return format!("{tag}={}", f32::from_le_bytes(value.try_into().unwrap()));
    }
    let plugin = fields(fields(of(9).unwrap())[0].2)[0].2;
    assert_eq!(plugin, b"text");
    let string = fields(of(8).unwrap()).into_iter().find(|f| f.0 == 8).unwrap().2;
    format!("{tag}={:?}", text_of(string))
}

fn text_of(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn files(run: &RunDir) -> Vec<Vec<String>> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(run.tensorboard()).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in &paths {
        assert!(path.file_name().unwrap().to_str().unwrap().starts_with("events.out.tfevents."));
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
    }
    paths.iter().map(|path| read(&fs::read(path).unwrap())).collect()
}

fn start(resumed_from_step: Option<u64>) -> Kind {
    Kind::RunStarted(RunStarted { resumed_from_step, ..RunStarted::default() })
}

fn step(step: u64, loss_nats: f64) -> Kind {
    Kind::Step(Step { step, loss_nats, lr: Some(0.5), ..Step::default() })
}

#[test]
fn a_run_and_its_resume_are_two_files_with_the_values_of_the_events() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::create(root.path().join("r")).unwrap();
    let gpu = GpuSample {
        sm_clock_mhz: Some(2400),
        temperature_celsius: Some(61),
        power_watts: Some(71.5),
        ..GpuSample::default()
    };
    let sample =
        |text: &str| Kind::Sample(Sample { step: 2, prompt: "p\n# q".into(), text: text.into(), tokens: 1 });
    for kinds in [
        vec![
            start(None),
            step(1, 2.5),
            Kind::Step(Step {
                step: 2,
                loss_nats: f64::NAN,
                grad_norm: Some(0.25),
                tokens_per_s: Some(100.0),
                mem_used_bytes: Some(1 << 30),
                ..Step::default()
            }),
            Kind::DeviceSample(DeviceSample { gpus: vec![gpu], ..DeviceSample::default() }),
            Kind::DeviceSample(DeviceSample::default()),
            Kind::Eval(Eval { step: 2, loss_nats: 1.25, ..Eval::default() }),
            Kind::HeadEval(HeadEval { step: 1, loss_nats: 1.5, ..HeadEval::default() }),
            sample("one"),
            sample("t\u{202e}wo\u{1b}[1m"),
            Kind::Warning(Warning { message: "hot <b>".into(), step: None }),
            step(3, 2.0),
            Kind::RunFinished(RunFinished::default()),
        ],
        vec![start(Some(2)), step(3, 1.5)],
    ] {
        let lease = Lease::acquire(&run).unwrap();
        let writer = EventWriter::open(&lease).unwrap();
        writer.mirror_to_tensorboard(&lease);
        kinds.into_iter().for_each(|kind| writer.emit(kind));
        // The file is dropped, which writes the rest.
    }
    assert_eq!(fs::metadata(run.tensorboard()).unwrap().permissions().mode() & 0o777, 0o700);
    let [first, second] = &files(&run)[..] else { panic!("two files") };
    assert_eq!(
        first[..],
        [
            "step 0: brain.Event:2",
            "step 0: session 1",
            "step 1: loss/train=2.5 lr=0.5",
            "step 2: loss/train=NaN tokens_per_s=100 grad_norm=0.25 mem_used_bytes=1073741800",
            "step 2: gpu/sm_clock_mhz=2400 gpu/temperature_celsius=61 gpu/power_watts=71.5",
            "step 2: loss/eval=1.25",
            "step 1: loss/mtp_eval=1.5",
            r##"step 2: samples/1="Prompt\n\n    p\n    # q\n\nAnswer\n\n    one\n""##,
            r##"step 2: samples/2="Prompt\n\n    p\n    # q\n\nAnswer\n\n    t\\u{202e}wo\\u{1b}[1m\n""##,
            r#"step 2: warnings="    hot <b>\n""#,
            "step 3: loss/train=2 lr=0.5",
        ]
    );
    assert_eq!(second[..], ["step 0: brain.Event:2", "step 3: session 1", "step 3: loss/train=1.5 lr=0.5"]);
}

/// A disk with little space that can truncate a file.
struct SmallDisk {
    bytes: Vec<u8>,
    room: usize,
}

impl Write for SmallDisk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = bytes.len().min(self.room);
        if n == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.room -= n;
        self.bytes.extend_from_slice(&bytes[..n]);
        Ok(n)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Cut for SmallDisk {
    fn cut_to(&mut self, len: u64) -> io::Result<()> {
        self.bytes.truncate(len as usize);
        Ok(())
    }
}

#[test]
fn half_a_record_is_cut_off_so_that_what_follows_can_be_read() {
    let mut disk = Whole { out: SmallDisk { bytes: Vec::new(), room: 0 }, len: 0, broken: false };
    let mut kept = Vec::new();
    for n in 0..200_u64 {
        disk.out.room += (n as usize * 37) % 61;
        let mut event = Message::default();
        event.whole(2, n);
        let mut bytes = Vec::new();
        record(&mut bytes, event.bytes());
        if disk.append(&bytes).is_ok() {
            kept.push(format!("step {n}: "));
        }
    }
    assert!(kept.len() > 50 && kept.len() < 200, "{}", kept.len());
    assert_eq!(read(&disk.out.bytes), kept);
}

#[test]
fn a_full_disk_is_said_once_and_counted_and_the_events_go_on() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::create(root.path().join("r")).unwrap();
    let lease = Lease::acquire(&run).unwrap();
    let mut board = TensorBoard::create(&run, 1).unwrap();
    board.out.out = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let warned: Vec<String> = (1..=3)
        .filter_map(|n| {
            // What has waited for a second is written at once.
            let logged = board.log(&step(n, 1.0), now_us());
            logged.or_else(|| board.flush())
        })
        .collect();
    assert!(matches!(&warned[..], [once] if once.contains("disk is full")), "{warned:?}");
    assert_eq!(board.lost(), 4, "the version and three steps");
    // A phase is no record, and so says nothing of the disk.
    let phase = Kind::Phase(Phase { phase: "export".into(), detail: None });
    board.flushed = Instant::now().checked_sub(2 * FLUSH_EVERY).unwrap();
    assert_eq!((board.log(&phase, now_us()), board.flush()), (None, None));

    // If the folder cannot be created, there is a warning among the events and no other effect.
    fs::remove_dir_all(run.tensorboard()).unwrap();
    fs::write(run.tensorboard(), "in the way").unwrap();
    let writer = EventWriter::open(&lease).unwrap();
    writer.mirror_to_tensorboard(&lease);
    writer.emit(step(1, 1.0));
    let log = fs::read_to_string(run.event_file(1)).unwrap();
    assert!(log.contains("no charts for TensorBoard") && log.contains("\"kind\":\"step\""), "{log}");
    assert_eq!((writer.lost(), writer.tensorboard_lost()), (0, 0));
}
