//! Speed of a token file's way to a CUDA device, by each way that CUDA has, and the copies on the host that
//! it costs.
//!
//! The packets are brought from the mapped file, which is in the page cache, to memory of the device, and
//! compared there once for each way. Ways alternate, and medians of the wall time are reported. Without a
//! device there is one row, which says why.

use sparktune_data::token_file::TokenFile;

use crate::context::Context;
use crate::row::Row;

/// The first words of each row.
const TO: &str = "to the device";

/// Rows of the packets' way to the first CUDA device.
#[cfg(feature = "cuda")]
pub(crate) fn rows(context: &Context, file: &TokenFile) -> Vec<Row> {
    let measured = on_cuda::rows(context.size.loading_rounds, &file.bytes()[..file.packets_end()]);
    measured.unwrap_or_else(|why: String| vec![Row::skipped(TO, "MB/s", &why)])
}

/// The row that says that nothing can be measured.
#[cfg(not(feature = "cuda"))]
pub(crate) fn rows(_: &Context, _: &TokenFile) -> Vec<Row> {
    vec![Row::skipped(TO, "MB/s", "this program was built without CUDA")]
}

#[cfg(feature = "cuda")]
mod on_cuda {
    use std::time::Instant;

    use sparktune_kernels::upload::Upload;

    use super::TO;
    use crate::gpu::{caught, first_device};
    use crate::median::median;
    use crate::row::Row;

    /// How bytes get to the device.
    #[derive(Clone, Copy, PartialEq)]
    enum Way {
        Pageable,
        Pinned,
        PinnedInPlace,
        ReadInPlace,
    }

    impl Way {
        const ALL: [Self; 4] = [Self::Pageable, Self::Pinned, Self::PinnedInPlace, Self::ReadInPlace];

        fn what(self) -> String {
            let way = match self {
                Self::Pageable => "pageable",
                Self::Pinned => "through pinned memory",
                Self::PinnedInPlace => "pages of the file pinned in place",
                Self::ReadInPlace => "read in place by a kernel",
            };
            format!("{TO}: {way}")
        }

        /// Brings the bytes to the device. Returns the seconds, without those for pinning pages of the file.
        fn take(self, upload: &mut Upload, bytes: &[u8]) -> Result<f64, String> {
            let pinned = match self {
                Self::PinnedInPlace => Some(upload.register(bytes)?),
                _ => None,
            };
            let began = Instant::now();
            match self {
                Self::Pageable | Self::PinnedInPlace => upload.direct(bytes)?,
                Self::Pinned => upload.staged(bytes)?,
                Self::ReadInPlace => caught(|| upload.in_place(bytes))??,
            }
            let seconds = began.elapsed().as_secs_f64();
            drop(pinned);
            Ok(seconds)
        }

        /// Returns whether the same bytes are on the device.
        fn is_right(self, upload: &mut Upload, bytes: &[u8]) -> Result<bool, String> {
            match self {
                Self::ReadInPlace => caught(|| upload.got_in_place(bytes)),
                _ => upload.got(bytes),
            }
        }

        /// The copies on the host that the driver makes, as CUDA documents them.
        fn copies_of_driver(self) -> f64 {
            if self == Self::Pageable { 1.0 } else { 0.0 }
        }

        fn note(self, rounds: usize) -> String {
            match self {
                Self::Pageable => {
                    format!("median of {rounds} rounds in turn, warm, wall time; by the driver")
                }
                Self::Pinned => "two pinned buffers of 4 MiB in turn".to_owned(),
                Self::PinnedInPlace => "the device fetches them itself; pinning not counted".to_owned(),
                Self::ReadInPlace => "a tensor is made of them".to_owned(),
            }
        }
    }

    /// What was measured of a way.
    struct Measured {
        way: Way,
        seconds: Vec<f64>,
        copies: f64,
        refused: Option<String>,
    }

    pub(super) fn rows(rounds: usize, bytes: &[u8]) -> Result<Vec<Row>, String> {
        let device = first_device()?;
        let mut upload = caught(|| Upload::new(&device, bytes.len()))??;
        let mut all = Way::ALL.map(|way| Measured { way, seconds: Vec::new(), copies: 0.0, refused: None });
        for round in 0..=rounds {
            for one in all.iter_mut().filter(|one| one.refused.is_none()) {
                let staged = upload.staged_bytes();
                match one.way.take(&mut upload, bytes) {
                    // The first round faults pages in and compiles the kernel.
                    Ok(_) if round == 0 => {
                        if !one.way.is_right(&mut upload, bytes)? {
                            one.refused = Some("other bytes arrived than were sent".into());
                        }
                    }
                    Ok(seconds) => one.seconds.push(seconds),
                    Err(why) => one.refused = Some(why),
                }
                let ours = (upload.staged_bytes() - staged) as f64 / bytes.len() as f64;
                one.copies = ours + one.way.copies_of_driver();
            }
        }
        Ok(all.into_iter().flat_map(|one| one.rows(rounds, bytes.len())).collect())
    }

    impl Measured {
        fn rows(self, rounds: usize, bytes: usize) -> Vec<Row> {
            let what = self.way.what();
            if let Some(why) = &self.refused {
                return vec![Row::skipped(what, "MB/s", why)];
            }
            let rate = bytes as f64 / 1e6 / median(self.seconds);
            vec![
                Row::new(what, rate, "MB/s", self.way.note(rounds)),
                Row::new("  copies on the host", self.copies, "", ""),
            ]
        }
    }

    #[cfg(test)]
    mod on_device {
        use super::*;

        #[test]
        fn every_way_is_measured_with_its_copies_or_says_why_not() {
            if sparktune_kernels::testing::cuda_device().is_none() {
                return;
            }
            let words: Vec<u64> = (0..1 << 17).map(|i: u64| i.wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect();
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let rows = rows(2, &bytes).unwrap();
            let of = |way: Way| rows.iter().position(|row| row.what == way.what()).unwrap();
            for (way, copies) in Way::ALL.into_iter().zip([1.0, 1.0, 0.0, 0.0]) {
                let at = of(way);
                if rows[at].value.is_nan() {
                    assert!(rows[at].note.starts_with("skipped: ") && copies == 0.0, "{:?}", rows[at]);
                } else {
                    assert!(rows[at].value > 0.0 && rows[at + 1].value == copies, "{:?}", &rows[at..at + 2]);
                }
            }
        }
    }
}
