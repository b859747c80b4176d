//! The protocol lab: single packets made, taken apart and damaged, and how fast packets go through this
//! machine. Everything is computed by the code that reads and writes files; a page only shows it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Json;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use sparktune_data::packets::PacketError;
use sparktune_data::packets::anatomy::{Anatomy, Field, inspect, inspect_as};
use sparktune_data::packets::checks::Check;
use sparktune_data::packets::codes::{Code, CodeField, Route, WEIGHTS};
use sparktune_data::packets::dtype::Dtype;
use sparktune_data::packets::format::Format;
use sparktune_data::packets::lab::{
    Content, EveryFlip, Overhead, Version, encode, every_flip, flip, from_hex, overhead, to_hex,
};
use sparktune_data::packets::names::place_of;
use sparktune_data::packets::speed::{Rate, measure};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api::Listed;
use crate::problem::{Body, Problem, blocking};
use crate::state::Shared;

/// The most bytes of a packet here.
const MOST_BYTES: usize = 8 << 10;
/// The most bytes of a packet whose bits are all flipped, which takes a time that grows with its square.
const MOST_FLIPPED: usize = 2 << 10;
/// The most bits that are flipped together.
const MOST_FLIPS: usize = 1 << 10;
/// The time of each of the measured things.
const MEASURED: Duration = Duration::from_millis(200);

pub(crate) fn router() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(codes))
        .routes(routes!(make))
        .routes(routes!(take_apart))
        .routes(routes!(flips))
        .routes(routes!(sizes))
        .routes(routes!(rates))
}

/// The codes that have names.
#[derive(Debug, Serialize, ToSchema)]
struct Codes {
    /// Where data comes from: `{code, word, name}`.
    #[schema(value_type = Vec<Object>)]
    src: &'static [Code],
    /// The part of a model that it is meant for.
    #[schema(value_type = Vec<Object>)]
    dst: &'static [Code],
    /// How a payload is encoded.
    #[schema(value_type = Vec<Object>)]
    typ: &'static [Code],
    /// The dtypes of tensors.
    dtypes: Vec<&'static str>,
}

/// A packet that is to be made. One of `ids`, `text`, `hex` and `tensor` is its content.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct PacketWish {
    /// The version of the format, 1 or 2.
    version: u8,
    /// SRC; if it is left out 1, and 128 for a tensor.
    src: Option<u8>,
    /// DST; if it is left out 1, and what its name says for a tensor.
    dst: Option<u8>,
    /// TYP; that of the content if it is left out.
    typ: Option<u8>,
    /// Token ids.
    ids: Option<Vec<u32>>,
    /// A text, as UTF-8.
    text: Option<String>,
    /// Bytes as hex digits.
    hex: Option<String>,
    /// A whole tensor.
    tensor: Option<TensorWish>,
}

/// A tensor for a packet.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct TensorWish {
    /// Its name.
    name: String,
    /// The encoding of its numbers, as safetensors names it.
    dtype: String,
    /// Its shape.
    shape: Vec<u64>,
    /// Its numbers as hex digits, little-endian; zeros if they are left out.
    hex: Option<String>,
}

/// A packet that is to be taken apart.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct PacketGiven {
    /// Its bytes as hex digits.
    hex: String,
    /// Bits that are flipped before, from 0: bit 0 is the lowest of the first byte.
    #[serde(default)]
    flip: Vec<usize>,
}

/// A packet in its parts.
#[derive(Debug, Serialize, ToSchema)]
struct PacketView {
    /// Its bytes as hex digits.
    hex: String,
    /// `v1`, `v2_tokens` or `v2_typed`.
    #[schema(value_type = String)]
    format: Format,
    /// The format in words.
    format_name: &'static str,
    /// Its bytes.
    bytes: usize,
    /// The bytes of its payload.
    payload_bytes: usize,
    /// Its fields in order, without gaps: `{name, layer, offset, len, value, about}`. Values are escaped.
    #[schema(value_type = Vec<Object>)]
    fields: Vec<Field>,
    /// What each check says: `{name, layer, passes, says, from, to}`.
    #[schema(value_type = Vec<Object>)]
    checks: Vec<Check>,
    /// Whether every check passes.
    is_intact: bool,
}

/// What checks notice of single flipped bits.
#[derive(Debug, Serialize, ToSchema)]
struct FlipsView {
    /// The number of bits.
    bits: usize,
    /// Those whose flip is noticed.
    noticed: usize,
    /// The first of those whose flip is not.
    missed: Vec<usize>,
    /// `[name, noticed]` of each check.
    #[schema(value_type = Vec<Object>)]
    by_check: Vec<(&'static str, usize)>,
}

/// How fast packets went through this machine.
#[derive(Debug, Serialize, ToSchema)]
struct RatesView {
    /// What was measured, in a sentence.
    about: String,
    /// The token ids of each packet.
    tokens: usize,
    /// The rates: `{version, what, payload_bytes, packets, seconds, bytes_per_s}`.
    #[schema(value_type = Vec<Object>)]
    items: Vec<Rate>,
}

/// The packets that are to be measured.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct RatesWish {
    /// Token ids in a packet, from 1 to 16,383.
    tokens: usize,
}

impl PacketView {
    fn new(bytes: &[u8], anatomy: Anatomy) -> Self {
        let Anatomy { format, format_name, bytes: len, payload_bytes, fields, checks, is_intact } = anatomy;
        Self { hex: to_hex(bytes), format, format_name, bytes: len, payload_bytes, fields, checks, is_intact }
    }
}

fn refused(error: PacketError) -> Problem {
    match error {
        PacketError::Unfit { what, fix } => Problem::bad_request(what).advise(fix),
        other => Problem::bad_request(other.to_string()),
    }
}

/// Reads hex digits of at most [`MOST_BYTES`].
fn bytes_of(hex: &str, place: &str) -> Result<Vec<u8>, Problem> {
    if hex.len() > 4 * MOST_BYTES {
        return Err(too_long(place));
    }
    let bytes = from_hex(hex).ok_or_else(|| {
        Problem::bad_request("these are not hex digits in pairs")
            .at(place)
            .advise("Use 0 to 9 and a to f, two for a byte")
    })?;
    if bytes.len() > MOST_BYTES { Err(too_long(place)) } else { Ok(bytes) }
}

fn too_long(place: &str) -> Problem {
    Problem::bad_request(format!("a packet of the lab has at most {MOST_BYTES} bytes"))
        .at(place)
        .advise("Give less; `sparktune packet` takes files of any size")
}

impl PacketWish {
    fn content(&self) -> Result<Content, Problem> {
        let one = Problem::bad_request("a packet has one of ids, text, hex and tensor").at("content");
        let content = match (&self.ids, &self.text, &self.hex, &self.tensor) {
            (Some(ids), None, None, None) => Content::Ids(ids.clone()),
            (None, Some(text), None, None) => Content::Bytes(text.clone().into_bytes()),
            (None, None, Some(hex), None) => {
                Content::Bytes(if hex.trim().is_empty() { Vec::new() } else { bytes_of(hex, "hex")? })
            }
            (None, None, None, Some(tensor)) => tensor.content()?,
            _ => return Err(one),
        };
        let bytes = match &content {
            Content::Ids(ids) => 4 * ids.len(),
            Content::Bytes(bytes) | Content::Tensor { bytes, .. } => bytes.len(),
        };
        if bytes > MOST_BYTES - 512 { Err(too_long("content")) } else { Ok(content) }
    }
}

impl TensorWish {
    fn content(&self) -> Result<Content, Problem> {
        let dtype = Dtype::named(&self.dtype).ok_or_else(|| {
            let names: Vec<_> = Dtype::all().map(Dtype::name).collect();
            Problem::bad_request("there is no such dtype")
                .at("tensor.dtype")
                .advise(format!("Use one of {}", names.join(", ")))
        })?;
        let bytes = match self.hex.as_deref().map(str::trim).filter(|hex| !hex.is_empty()) {
            Some(hex) => bytes_of(hex, "tensor.hex")?,
            None => {
                let bytes = dtype.bytes_of(&self.shape).filter(|bytes| *bytes <= MOST_BYTES as u64);
                vec![0; bytes.ok_or_else(|| too_long("tensor.shape"))? as usize]
            }
        };
        Ok(Content::Tensor { name: self.name.clone(), dtype, shape: self.shape.clone(), bytes })
    }
}

/// The codes of packets
///
/// Any other code is carried too, and named as unknown.
#[utoipa::path(get, path = "/packets/codes", tag = "packets", responses((status = 200, body = Codes)))]
async fn codes() -> Json<Codes> {
    Json(Codes {
        src: CodeField::Src.codes(),
        dst: CodeField::Dst.codes(),
        typ: CodeField::Typ.codes(),
        dtypes: Dtype::all().map(Dtype::name).collect(),
    })
}

/// Make a packet
///
/// The answer has its bytes, its fields, and what each check says of them.
#[utoipa::path(post, path = "/packets", tag = "packets", request_body = PacketWish,
    responses((status = 200, body = PacketView), (status = 400, body = Problem)))]
async fn make(Body(wish): Body<PacketWish>) -> Result<Json<PacketView>, Problem> {
    let content = wish.content()?;
    let version = match wish.version {
        1 => Version::V1,
        2 => Version::V2,
        other => {
            return Err(Problem::bad_request(format!("there is no version {other}"))
                .at("version")
                .advise("The versions are 1 and 2"));
        }
    };
    let given = match &content {
        Content::Tensor { name, .. } => Route { src: WEIGHTS, dst: place_of(name).dst },
        Content::Ids(_) | Content::Bytes(_) => Route::default(),
    };
    let route = Route { src: wish.src.unwrap_or(given.src), dst: wish.dst.unwrap_or(given.dst) };
    blocking(move || {
        let bytes = encode(version, route, wish.typ, &content).map_err(refused)?;
        Ok(Json(PacketView::new(&bytes, inspect(&bytes))))
    })
    .await
}

/// Take a packet apart
///
/// Bits can be flipped before; the fields are then those of the packet as it was.
#[utoipa::path(post, path = "/packets/inspect", tag = "packets", request_body = PacketGiven,
    responses((status = 200, body = PacketView), (status = 400, body = Problem)))]
async fn take_apart(Body(given): Body<PacketGiven>) -> Result<Json<PacketView>, Problem> {
    if given.flip.len() > MOST_FLIPS {
        return Err(Problem::bad_request(format!("at most {MOST_FLIPS} bits are flipped at once")).at("flip"));
    }
    let mut bytes = bytes_of(&given.hex, "hex")?;
    blocking(move || {
        let format = Format::of(&bytes);
        for bit in given.flip {
            flip(&mut bytes, bit).map_err(refused)?;
        }
        Ok(Json(PacketView::new(&bytes, inspect_as(format, &bytes))))
    })
    .await
}

/// Flip each bit of a packet alone
///
/// And count what the checks notice. The packet has at most 2,048 bytes.
#[utoipa::path(post, path = "/packets/flips", tag = "packets", request_body = PacketGiven,
    responses((status = 200, body = FlipsView), (status = 400, body = Problem)))]
async fn flips(Body(given): Body<PacketGiven>) -> Result<Json<FlipsView>, Problem> {
    let bytes = bytes_of(&given.hex, "hex")?;
    if bytes.len() > MOST_FLIPPED || !given.flip.is_empty() {
        return Err(Problem::bad_request(format!(
            "every bit of an undamaged packet of at most {MOST_FLIPPED} bytes can be flipped"
        ))
        .at("hex"));
    }
    blocking(move || {
        let EveryFlip { bits, noticed, missed, by_check } = every_flip(&bytes);
        Ok(Json(FlipsView { bits, noticed, missed, by_check }))
    })
    .await
}

/// The size of packets by their payload
///
/// Packets of token ids in both versions, from one token to a million: `{payload_bytes, v1_bytes,
/// v2_token_bytes, v2_typed_bytes}`. Where no packet can hold the payload, there is null.
#[utoipa::path(get, path = "/packets/sizes", tag = "packets", responses((status = 200, body = Listed<Object>)))]
async fn sizes() -> Json<Listed<Overhead>> {
    // Eight steps in each doubling, so that the jumps of padding are seen.
    let mut tokens: Vec<u32> =
        (0..=160).map(|step| 2f64.powf(f64::from(step) / 8.0).round() as u32).collect();
    tokens.extend([16_383, 16_384]);
    tokens.sort_unstable();
    tokens.dedup();
    Json(Listed::whole(tokens.into_iter().map(overhead).collect()))
}

static MEASURING: AtomicBool = AtomicBool::new(false);

/// Ends the measurement for others, also if it fails.
struct Measuring;

impl Drop for Measuring {
    fn drop(&mut self) {
        MEASURING.store(false, Ordering::Release);
    }
}

/// Measure packets on this machine
///
/// For about a second, on one core and in memory: writing packets of token ids, reading them with every
/// check, and a copy of as many bytes in the same run. One measurement at a time.
#[utoipa::path(post, path = "/packets/rates", tag = "packets", request_body = RatesWish,
    responses((status = 200, body = RatesView), (status = 400, body = Problem), (status = 409, body = Problem)))]
async fn rates(Body(RatesWish { tokens }): Body<RatesWish>) -> Result<Json<RatesView>, Problem> {
    if !(1..=16_383).contains(&tokens) {
        return Err(
            Problem::bad_request("a packet that both versions can hold has 1 to 16,383 tokens").at("tokens")
        );
    }
    if MEASURING.swap(true, Ordering::AcqRel) {
        return Err(Problem::new(StatusCode::CONFLICT, "another measurement is running")
            .advise("Try again in a few seconds"));
    }
    let guard = Measuring;
    blocking(move || {
        let _guard = guard;
        let items = measure(tokens, MEASURED);
        let about = format!(
            "Payload bytes per second on one core, in memory: packets of {tokens} token ids, written and then read with every checksum, beside a copy of as many bytes."
        );
        Ok(Json(RatesView { about, tokens, items }))
    })
    .await
}
