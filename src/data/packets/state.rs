//! The tensors of a safetensors file as typed packets, and back, bit for bit.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use safetensors::tensor::{SafeTensorError, TensorView, View, serialize_to_file};
use safetensors::{Dtype as TheirDtype, SafeTensors};
use serde::Serialize;
use sparktune_base::escape::escape;
use sparktune_base::files::{refuse_to_replace_special, sync};
use sparktune_base::units::counted;

use super::assembly::{Assembly, WholeTensor};
use super::codes::{Route, WEIGHTS};
use super::dtype::Dtype;
use super::error::PacketError;
use super::file::{About, PacketFile, PacketFileWriter};
use super::names::place_of;
use super::typed::{MAX_NAME, MAX_PAYLOAD, MAX_RANK, StateId, TensorPart, TypedHeader};
use crate::token_file::{OnDamage, map_file};

/// The bytes of a tensor in one packet, unless it says otherwise: small enough to be sent again without much
/// loss, and large enough that headers do not count.
pub const PART_BYTES: u64 = 1 << 20;

/// How tensors become packets.
#[derive(Debug, Clone, Copy)]
pub struct TensorOptions {
    /// SRC of the packets.
    pub src: u8,
    /// DST of the packets; without it, each tensor's name decides.
    pub dst: Option<u8>,
    /// The most bytes of a tensor in one packet.
    pub part_bytes: u64,
}

impl Default for TensorOptions {
    fn default() -> Self {
        Self { src: WEIGHTS, dst: None, part_bytes: PART_BYTES }
    }
}

/// What was written or read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct TensorsDone {
    /// The number of tensors.
    pub tensors: u64,
    /// The number of packets.
    pub packets: u64,
    /// The bytes of the tensors.
    pub tensor_bytes: u64,
    /// The bytes of the file of packets.
    pub file_bytes: u64,
    /// The number of damaged places that were left out.
    pub damaged: u64,
    /// Packets that hold no tensor, which are not in the output.
    pub other_packets: u64,
}

/// A tensor that is to become packets.
#[derive(Debug, Clone, Copy)]
pub struct NamedTensor<'a> {
    /// The name.
    pub name: &'a str,
    /// The encoding of the numbers.
    pub dtype: Dtype,
    /// The shape.
    pub shape: &'a [u64],
    /// The numbers, little-endian.
    pub bytes: &'a [u8],
}

/// Identifies tensors by their names, dtypes, shapes and bytes, whatever order they come in.
///
/// # Errors
/// There are more than 4 billion.
pub fn state_id<'a>(tensors: impl IntoIterator<Item = NamedTensor<'a>>) -> Result<StateId, PacketError> {
    let by_name: BTreeMap<&str, NamedTensor<'_>> = tensors.into_iter().map(|one| (one.name, one)).collect();
    let mut hasher = StateHasher::default();
    for tensor in by_name.values() {
        hasher.tensor(tensor.name, tensor.dtype, tensor.shape);
        hasher.bytes(tensor.bytes);
    }
    hasher.finish()
}

/// Hashes tensors that come in the order of their names.
#[derive(Default)]
struct StateHasher {
    hasher: blake3::Hasher,
    tensors: u64,
}

impl StateHasher {
    fn tensor(&mut self, name: &str, dtype: Dtype, shape: &[u64]) {
        self.tensors += 1;
        // Lengths come first, so that no two lists of tensors give the same bytes.
        self.hasher.update(&(name.len() as u64).to_le_bytes());
        self.hasher.update(name.as_bytes());
        self.hasher.update(&[dtype.code(), shape.len() as u8]);
        for size in shape {
            self.hasher.update(&size.to_le_bytes());
        }
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.hasher.update_rayon(bytes);
    }

    fn finish(self) -> Result<StateId, PacketError> {
        let tensors = u32::try_from(self.tensors)
            .map_err(|_| PacketError::unfit("there are more tensors than 32 bits count", "Split them"))?;
        let hash = self.hasher.finalize();
        let start: [u8; 8] = hash.as_bytes()[..8].try_into().expect("eight bytes");
        // 0 stands for an unknown state.
        Ok(StateId { hash: u64::from_le_bytes(start).max(1), tensors })
    }
}

/// Writes tensors as packets. Each is cut into parts, which follow each other.
///
/// # Errors
/// A tensor does not fit packets, or the file cannot be written.
pub fn write_tensors(
    tensors: &[NamedTensor<'_>],
    about: &About,
    output: &Path,
    options: &TensorOptions,
) -> Result<TensorsDone, PacketError> {
    let part_bytes = options.part_bytes.clamp(64, MAX_PAYLOAD) as usize;
    let state = state_id(tensors.iter().copied())?;
    let mut writer = PacketFileWriter::create(output, about)?;
    let mut done = TensorsDone { tensors: tensors.len() as u64, ..TensorsDone::default() };
    for tensor in tensors {
        refuse_unfit(tensor)?;
        let of = tensor.bytes.len().div_ceil(part_bytes).max(1);
        let of = u32::try_from(of)
            .map_err(|_| PacketError::unfit("a tensor has too many parts", "Use larger parts"))?;
        let route = Route { src: options.src, dst: options.dst.unwrap_or_else(|| place_of(tensor.name).dst) };
        for part in 0..of {
            let start = part as usize * part_bytes;
            let payload = &tensor.bytes[start..tensor.bytes.len().min(start + part_bytes)];
            let header = TypedHeader {
                route,
                typ: tensor.dtype.typ(),
                number: 0,
                tensor: Some(TensorPart {
                    name: tensor.name.to_owned(),
                    dtype: tensor.dtype,
                    shape: tensor.shape.to_vec(),
                    part,
                    of,
                    state,
                }),
            };
            writer.push(&header, payload)?;
            done.packets += 1;
        }
        done.tensor_bytes += tensor.bytes.len() as u64;
    }
    done.file_bytes = writer.finish()?;
    Ok(done)
}

fn refuse_unfit(tensor: &NamedTensor<'_>) -> Result<(), PacketError> {
    let NamedTensor { name, shape, .. } = tensor;
    if name.len() > MAX_NAME || shape.len() > MAX_RANK {
        let start: String = name.chars().take(60).collect();
        return Err(PacketError::unfit(
            format!(
                "the tensor {}… has a name of {} bytes and {} dimensions; packets hold {MAX_NAME} and {MAX_RANK}",
                escape(&start),
                name.len(),
                shape.len()
            ),
            "Give it a shorter name and fewer dimensions",
        ));
    }
    Ok(())
}

/// Writes the tensors of a safetensors file, such as an adapter, as packets.
///
/// # Errors
/// The file cannot be read, is no safetensors file, or has a tensor that packets cannot hold; the output
/// cannot be written.
pub fn pack_tensors(
    input: &Path,
    output: &Path,
    options: &TensorOptions,
) -> Result<TensorsDone, PacketError> {
    let fix = "Give a safetensors file, such as adapter_model.safetensors";
    let Some(map) = map_file(input)? else { return Err(PacketError::file(input, "the file is empty", fix)) };
    let no_safetensors = |error: SafeTensorError| {
        PacketError::file(input, format!("no safetensors file ({})", escape(&error.to_string())), fix)
    };
    let (_, metadata) = SafeTensors::read_metadata(&map).map_err(no_safetensors)?;
    let theirs = SafeTensors::deserialize(&map).map_err(no_safetensors)?;
    let mut views: Vec<(&str, TensorView<'_>)> = theirs.iter().collect();
    // The packets of a layer follow each other, as far as names tell.
    views.sort_by_key(|(name, _)| *name);
    let shapes: Vec<Vec<u64>> =
        views.iter().map(|(_, view)| view.shape().iter().map(|size| *size as u64).collect()).collect();
    let dtype_of = |(name, view): &(&str, TensorView<'_>)| {
        let theirs = dtype_name(view.dtype());
        Dtype::named(&theirs).ok_or_else(|| {
            let what = format!("{} has the dtype {theirs}, which packets do not have", escape(name));
            PacketError::file(input, what, "Convert it to another dtype")
        })
    };
    let dtypes = views.iter().map(dtype_of).collect::<Result<Vec<_>, _>>()?;
    let tensors: Vec<NamedTensor<'_>> = views
        .iter()
        .zip(&shapes)
        .zip(dtypes)
        .map(|(((name, view), shape), dtype)| NamedTensor { name, dtype, shape, bytes: view.data() })
        .collect();
    let about = About {
        made_of: input.file_name().map(|name| name.to_string_lossy().into_owned()),
        metadata: metadata
            .metadata()
            .iter()
            .flatten()
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect(),
    };
    write_tensors(&tensors, &about, output, options)
}

/// Returns the name of a dtype as it stands in a file.
fn dtype_name(dtype: TheirDtype) -> String {
    serde_json::to_value(dtype).ok().and_then(|name| name.as_str().map(str::to_owned)).unwrap_or_default()
}

/// Collects the tensors of a file of packets. The parts are places of packets in the file. Also returns the
/// number of packets that hold no tensor.
///
/// # Errors
/// A part is missing, comes twice, or is foreign; the tensors are not those that were written.
pub fn tensors_of(file: &PacketFile) -> Result<(Vec<WholeTensor<usize>>, u64), PacketError> {
    let mut assembly = Assembly::default();
    let mut others = 0;
    for (place, packet) in file.packets().enumerate() {
        match &packet.header.tensor {
            Some(tensor) => assembly.add(tensor, packet.payload.len() as u64, place)?,
            None => others += 1,
        }
    }
    let stated = assembly.state();
    let whole = assembly.finish()?;
    let mut hasher = StateHasher::default();
    for tensor in &whole {
        hasher.tensor(&tensor.name, tensor.dtype, &tensor.shape);
        tensor.parts.iter().for_each(|place| hasher.bytes(file.payload(*place)));
    }
    let found = hasher.finish()?;
    if let Some(stated) = stated.filter(|stated| stated.hash != 0 && *stated != found) {
        return Err(PacketError::parts(format!(
            "the tensors are not those that were written together: their hash is {:016x}, and the packets state {:016x}",
            found.hash, stated.hash
        )));
    }
    Ok((whole, others))
}

/// Writes the tensors of a file of packets as a safetensors file.
///
/// # Errors
/// As for [`tensors_of`]; there is no tensor; or a file cannot be read or written.
pub fn unpack_tensors(input: &Path, output: &Path, on_damage: OnDamage) -> Result<TensorsDone, PacketError> {
    let file = PacketFile::open(input, on_damage)?;
    let (tensors, other_packets) = tensors_of(&file)?;
    if tensors.is_empty() {
        let fix = "`packet show` lists what it carries";
        return Err(PacketError::file(input, "the file holds no tensors", fix));
    }
    let metadata: HashMap<String, String> = file.about().metadata.clone().into_iter().collect();
    let metadata = (!metadata.is_empty()).then_some(metadata);
    refuse_to_replace_special(output).map_err(PacketError::io(output))?;
    let folder = output.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let partial = tempfile::NamedTempFile::new_in(folder).map_err(PacketError::io(output))?;
    let views = tensors.iter().map(|tensor| FromPackets::new(&file, tensor).map(|view| (&tensor.name, view)));
    let views = views.collect::<Result<Vec<_>, _>>()?;
    serialize_to_file(views, metadata, partial.path()).map_err(|error| match error {
        SafeTensorError::IoError(source) => PacketError::Io { path: output.to_path_buf(), source },
        other => PacketError::file(output, escape(&other.to_string()), "Write it somewhere else"),
    })?;
    sync(partial.path()).map_err(PacketError::io(output))?;
    partial.persist(output).map_err(|error| PacketError::io(output)(error.error))?;
    sync(folder).map_err(PacketError::io(output))?;
    Ok(TensorsDone {
        tensors: tensors.len() as u64,
        packets: file.len() as u64,
        tensor_bytes: tensors.iter().filter_map(|tensor| tensor.dtype.bytes_of(&tensor.shape)).sum(),
        file_bytes: file.bytes(),
        damaged: file.defect_count(),
        other_packets,
    })
}

/// A tensor whose bytes are put together when they are written, so that only one is in memory.
struct FromPackets<'a> {
    file: &'a PacketFile,
    tensor: &'a WholeTensor<usize>,
    dtype: TheirDtype,
    shape: Vec<usize>,
}

impl<'a> FromPackets<'a> {
    fn new(file: &'a PacketFile, tensor: &'a WholeTensor<usize>) -> Result<Self, PacketError> {
        let dtype = serde_json::from_value(tensor.dtype.name().into()).map_err(|_| {
            let what = format!("safetensors has no dtype {}", tensor.dtype.name());
            PacketError::unfit(what, "Keep the packets as they are")
        })?;
        let shape = tensor.shape.iter().map(|size| *size as usize).collect();
        Ok(Self { file, tensor, dtype, shape })
    }
}

impl View for FromPackets<'_> {
    fn dtype(&self) -> TheirDtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        match self.tensor.parts.as_slice() {
            [only] => Cow::Borrowed(self.file.payload(*only)),
            parts => {
                let slices: Vec<&[u8]> = parts.iter().map(|place| self.file.payload(*place)).collect();
                Cow::Owned(slices.concat())
            }
        }
    }

    fn data_len(&self) -> usize {
        self.tensor.parts.iter().map(|place| self.file.payload(*place).len()).sum()
    }
}

impl std::fmt::Display for TensorsDone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} in {}", counted(self.tensors, "tensor"), counted(self.packets, "packet"))
    }
}
