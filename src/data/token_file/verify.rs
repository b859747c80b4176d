//! Finds every defect of a token file.

use std::path::Path;

use memmap2::Mmap;
use serde::Serialize;
use sparktune_base::program_name;

use super::damage::{Defect, Part};
use super::error::TokenFileError;
use super::reader::{IndexEntry, has_footer, map, mask_fault, release};
use super::scan::{Found, Scan, first_packet, tokens_of};
use super::v1;
use super::v2::{
    ALIGN, FILE_MAGIC, FOOTER, Footer, FooterFault, Header, HeaderFault, IndexLayout, MAX_HEADER, Origin,
    PacketHeader, u32_at, u64_at,
};

/// The result of [`verify`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VerifyReport {
    /// The version of the format, 1 or 2.
    pub format: u32,
    /// The size of the file in bytes.
    pub bytes: u64,
    /// The number of intact examples.
    pub intact_examples: u64,
    /// The number of tokens in them.
    pub intact_tokens: u64,
    /// Every defect in file order, up to [`VerifyReport::MAX_LISTED`].
    pub defects: Vec<Defect>,
    /// The number of further defects.
    pub defects_not_listed: u64,
}

impl VerifyReport {
    /// The largest number of listed defects, which limits the report of a destroyed file.
    pub const MAX_LISTED: usize = 10_000;

    fn new(format: u32, bytes: usize) -> Self {
        Self {
            format,
            bytes: bytes as u64,
            intact_examples: 0,
            intact_tokens: 0,
            defects: Vec::new(),
            defects_not_listed: 0,
        }
    }

    /// Returns whether the file is exactly what its writer wrote.
    pub fn is_sound(&self) -> bool {
        self.defects.is_empty()
    }

    fn add(&mut self, defect: Defect) {
        if self.defects.len() < Self::MAX_LISTED {
            self.defects.push(defect)
        } else {
            self.defects_not_listed += 1
        }
    }

    fn count(&mut self, tokens: u64) {
        self.intact_examples += 1;
        self.intact_tokens += tokens;
    }
}

/// Reads the whole file once and lists every defect. Returns `Err` only when the file cannot be read or is
/// not a token file at all.
///
/// In a v2 file every flipped bit is found. A v1 file has 16-bit checksums and does not store its length:
/// damage is missed with a chance of 1 in 65,536 per packet, and a file truncated between two packets looks
/// complete.
pub fn verify(path: &Path) -> Result<VerifyReport, TokenFileError> {
    let Some(map) = map(path)? else {
        return Err(TokenFileError::Truncated { path: path.to_path_buf(), what: "the file is empty".into() });
    };
    if is_v2(&map) {
        return Ok(verify_v2(&map));
    }
    if !v1::looks_like(&map) {
        return Err(TokenFileError::NotTokenFile {
            path: path.to_path_buf(),
            found: "no packet of either format was found",
            fix: format!("Give a file made by `{} pack`", program_name()),
        });
    }
    verify_v1(path, &map)
}

/// Returns whether these bytes are a v2 file or parts of one.
pub(super) fn is_v2(map: &[u8]) -> bool {
    map.starts_with(&FILE_MAGIC)
        || has_footer(map)
        || Scan::new(map, 0, map.len().min(2 * MAX_HEADER)).any(|f| matches!(f, Found::Intact(..)))
}

fn verify_v1(path: &Path, map: &[u8]) -> Result<VerifyReport, TokenFileError> {
    let mut report = VerifyReport::new(1, map.len());
    let mut reader = v1::Reader::new(map);
    while let Some(item) = reader.next_item().map_err(TokenFileError::io(path))? {
        match item {
            v1::Item::Packet(packet) if packet.kind == v1::TOKEN_IDS => match packet.token_ids() {
                Ok(tokens) => report.count(tokens.len() as u64),
                Err(reason) => report.add(
                    Defect::new(Part::Packet, packet.offset as usize, reason).of_example(packet.number, None),
                ),
            },
            v1::Item::Packet(_) => {}
            v1::Item::Damage(damage) => {
                report.add(
                    Defect::new(Part::Packet, damage.offset as usize, damage.to_string())
                        .of_example(damage.packets_before, None),
                );
            }
        }
    }
    Ok(report)
}

fn verify_v2(map: &Mmap) -> VerifyReport {
    let mut report = VerifyReport::new(2, map.len());
    let header = match Header::decode(map) {
        Ok(header) => Some(header),
        Err(HeaderFault::Damaged(defect)) => {
            report.add(defect);
            None
        }
        Err(HeaderFault::Version(version)) => {
            report.add(Defect::new(Part::Header, 0, format!("format version {version}, expected 2")));
            return report;
        }
    };
    let footer = match Footer::decode(map) {
        Ok(footer) => Some(footer),
        Err(FooterFault::Damaged(defect)) => {
            report.add(defect);
            None
        }
        Err(FooterFault::Absent) => {
            report.add(Defect::new(
                Part::Footer,
                map.len(),
                "missing: the file was truncated or never finished",
            ));
            None
        }
    };
    let names = header.as_ref().map_or_else(Header::default, |(header, _)| header.clone());
    let index = footer.as_ref().map(|footer| Index::new(map, footer));
    let trusted = index.as_ref().filter(|index| index.sound);
    if index.as_ref().is_some_and(|index| !index.sound) {
        report.add(Defect::new(
            Part::Index,
            footer.map_or(0, |f| f.index_offset as usize),
            "checksum does not match",
        ));
    }

    let start = match (&header, trusted) {
        (Some((_, block_len)), _) => *block_len,
        (None, index) => {
            let first = index.and_then(|index| index.entry(0)).map(|(offset, _)| offset as usize);
            first.filter(|at| at.is_multiple_of(ALIGN)).unwrap_or_else(|| first_packet(map))
        }
    };
    let end = footer.map_or(map.len(), |footer| footer.index_offset as usize);
    let mut walk = Walk {
        names: &names,
        index: index.as_ref(),
        next: 0,
        after_gap: false,
        counts: Counts::default(),
        end: start,
        report: &mut report,
    };
    let mut pass = HashedPass { map, hasher: blake3::Hasher::new(), done: 0 };
    for found in Scan::new(map, start, end) {
        match found {
            Found::Intact(offset, packet) => walk.intact(map, offset, packet),
            Found::BadPayload(offset, packet) => walk.bad_payload(offset, packet),
            Found::Gap(offset, bytes) => {
                if footer.is_some() || offset + bytes < end {
                    walk.gap(offset, bytes);
                }
            }
        }
        pass.up_to(walk.end);
    }
    let (seen, counts, packets_end) = (walk.next, walk.counts, walk.end);

    match footer {
        Some(footer) => {
            let stated = Counts {
                tokens: footer.total_tokens,
                targets: footer.target_tokens,
                max_token_id: footer.max_token_id,
            };
            if report.is_sound() && (seen, counts) != (footer.examples, stated) {
                report.add(Defect::new(
                    Part::Footer,
                    map.len() - FOOTER,
                    "its counts differ from the packets",
                ));
            }
            let hash = pass.finish(map.len() - FOOTER);
            if report.is_sound() && hash != footer.file_hash {
                report.add(Defect::new(
                    Part::FileHash,
                    map.len() - FOOTER,
                    "the content has a different hash",
                ));
            }
        }
        // Index and footer should fill the rest exactly; otherwise packets at the end are unreadable too.
        None => {
            let rest = (map.len() - packets_end.min(map.len())) as u64;
            if IndexLayout::new(0, seen).map(|index| index.end + FOOTER as u64) != Some(rest) {
                report.add(Defect::new(
                    Part::Packet,
                    packets_end,
                    format!("{rest} bytes after the last readable packet belong to no packet"),
                ));
            }
        }
    }
    report.defects.sort_by_key(|defect| defect.offset);
    report
}

/// The state of the pass over the packets.
struct Walk<'a> {
    names: &'a Header,
    index: Option<&'a Index<'a>>,
    /// The number of the next expected example.
    next: u64,
    /// Whether unreadable bytes came before, so that the number of the next example is uncertain.
    after_gap: bool,
    counts: Counts,
    /// The end of the last packet whose position is known.
    end: usize,
    report: &'a mut VerifyReport,
}

impl Walk<'_> {
    fn intact(&mut self, file: &[u8], offset: usize, packet: PacketHeader) {
        if !self.after_gap && packet.example != self.next {
            let what = format!("example {} was expected here", self.next);
            let origin = Some(self.names.describe(packet.origin));
            self.report.add(Defect::new(Part::Packet, offset, what).of_example(packet.example, origin));
        }
        let stated = IndexEntry {
            length: packet.token_count,
            target_count: packet.target_count,
            origin: packet.origin,
        };
        if let Some(what) = mask_fault(&file[offset..offset + packet.packet_len()], &packet) {
            self.lost(offset, packet.example, packet.origin, what);
        } else {
            self.report.count(u64::from(packet.token_count));
            self.counts.add(&file[offset..], &packet);
        }
        if let Some(index) = self.index
            && index.entry(packet.example) != Some((offset as u64, stated))
        {
            let origin = Some(self.names.describe(packet.origin));
            let at = index.at(packet.example);
            self.report.add(
                Defect::new(Part::Index, at, "its entry differs from the packet")
                    .of_example(packet.example, origin),
            );
        }
        self.passed(packet.example, offset + packet.packet_len());
    }

    fn bad_payload(&mut self, offset: usize, packet: PacketHeader) {
        let what = "tokens, mask or padding do not match their checksum";
        self.lost(offset, packet.example, packet.origin, what);
        self.passed(packet.example, offset + packet.packet_len());
    }

    fn passed(&mut self, example: u64, end: usize) {
        self.next = example.saturating_add(1);
        self.end = end;
        self.after_gap = false;
    }

    fn lost(&mut self, offset: usize, example: u64, origin: Origin, what: &str) {
        let origin = Some(self.names.describe(origin));
        self.report.add(Defect::new(Part::Packet, offset, what).of_example(example, origin));
    }

    /// Reports bytes without a readable packet header. An intact index still says which examples they
    /// contained.
    fn gap(&mut self, offset: usize, bytes: usize) {
        let end = offset + bytes;
        let first = self.next;
        if let Some(index) = self.index.filter(|index| index.sound) {
            while let Some((at, entry)) = index.entry(self.next).filter(|(at, _)| (*at as usize) < end) {
                self.lost(at as usize, self.next, entry.origin, "packet header does not match its checksum");
                self.next += 1;
            }
        }
        if self.next == first {
            let defect =
                Defect::new(Part::Packet, offset, format!("{bytes} bytes contain no readable packet"));
            self.report.add(defect.of_example(self.next, None));
        }
        self.end = end;
        self.after_gap = true;
    }
}

/// The sums in the footer, computed again.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Counts {
    tokens: u64,
    targets: u64,
    max_token_id: u32,
}

impl Counts {
    fn add(&mut self, packet: &[u8], header: &PacketHeader) {
        self.tokens += u64::from(header.token_count);
        self.targets += u64::from(header.target_count);
        self.max_token_id = tokens_of(packet, header).iter().copied().fold(self.max_token_id, u32::max);
    }
}

/// The index as bytes, which is readable even if its checksum is wrong.
struct Index<'a> {
    file: &'a [u8],
    layout: IndexLayout,
    examples: u64,
    sound: bool,
}

impl<'a> Index<'a> {
    fn new(file: &'a [u8], footer: &Footer) -> Self {
        let layout =
            IndexLayout::new(footer.index_offset, footer.examples).expect("the footer's sizes were checked");
        let crc = crc32c::crc32c(&file[layout.offset as usize..layout.end as usize]);
        Self { file, layout, examples: footer.examples, sound: crc == footer.index_crc }
    }

    fn at(&self, example: u64) -> usize {
        (self.layout.offset + 8 * example.min(self.examples)) as usize
    }

    /// Returns the offset and the entry of an example, or `None` past the end.
    fn entry(&self, example: u64) -> Option<(u64, IndexEntry)> {
        (example < self.examples).then(|| {
            let narrow = |column: u64| u32_at(self.file, (column + 4 * example) as usize);
            let wide = |column: u64| u64_at(self.file, (column + 8 * example) as usize);
            let origin =
                Origin { file: narrow(self.layout.source_file), line: wide(self.layout.source_line) };
            let entry = IndexEntry {
                length: narrow(self.layout.length),
                target_count: narrow(self.layout.target_count),
                origin,
            };
            (wide(self.layout.offset), entry)
        })
    }
}

/// Hashes the part of the file that was already read and releases its pages, so that a file larger than
/// memory is read only once.
struct HashedPass<'a> {
    map: &'a Mmap,
    hasher: blake3::Hasher,
    done: usize,
}

impl HashedPass<'_> {
    const WINDOW: usize = 16 << 20;

    fn up_to(&mut self, end: usize) {
        while end - self.done >= Self::WINDOW {
            self.take(Self::WINDOW);
        }
    }

    fn take(&mut self, bytes: usize) {
        self.hasher.update_rayon(&self.map[self.done..self.done + bytes]);
        release(self.map, self.done..self.done + bytes);
        self.done += bytes;
    }

    fn finish(mut self, end: usize) -> [u8; 32] {
        self.up_to(end);
        self.take(end - self.done);
        *self.hasher.finalize().as_bytes()
    }
}
