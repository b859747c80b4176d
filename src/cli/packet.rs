//! Flags of `packet`.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand};
use sparktune_commands::{PacketContent, PacketRequest};

#[derive(Debug, Args)]
pub(crate) struct PacketArgs {
    #[command(subcommand)]
    pub command: PacketCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PacketCommand {
    /// Make a packet and print it as hex, or write the tensors of a safetensors file as packets
    Encode(EncodeArgs),
    /// Take a packet apart: its fields, and what each check says
    Decode(DecodeArgs),
    /// Flip a bit of a packet, and show what each check says then
    Flip(FlipArgs),
    /// List what a file of packets carries, and where it would go
    Show {
        /// A file of v1 packets, a token file, or a file of typed packets
        file: PathBuf,
    },
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("content").required(true))]
pub(crate) struct EncodeArgs {
    /// Token ids, as in 1,2,3
    #[arg(long, value_name = "ID,...", value_delimiter = ',', group = "content")]
    pub ids: Option<Vec<u32>>,
    /// A text, as UTF-8
    #[arg(long, group = "content")]
    pub text: Option<String>,
    /// Bytes as hex digits
    #[arg(long, value_name = "DIGITS", group = "content")]
    pub hex: Option<String>,
    /// The bytes of a file
    #[arg(long, group = "content")]
    pub file: Option<PathBuf>,
    /// All tensors of a safetensors file, such as an adapter; needs --output
    #[arg(long, value_name = "FILE", group = "content", requires = "output")]
    pub tensors: Option<PathBuf>,
    /// Where it comes from: text, code, gradient, weights, or a number
    #[arg(long, value_name = "CODE")]
    pub src: Option<String>,
    /// The part of a model it is meant for: embedding, attention, ffn, lora, other, or a number
    #[arg(long, value_name = "CODE")]
    pub dst: Option<String>,
    /// How it is encoded: token-ids, float16, bfloat16, tensor, bytes, or a number
    #[arg(long, value_name = "CODE", conflicts_with = "tensors")]
    pub typ: Option<String>,
    /// The version of the packet
    #[arg(long, value_name = "v1|v2", default_value = "v2", value_parser = ["v1", "v2"], hide_possible_values = true)]
    pub to: String,
    /// Write a file instead of printing hex
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct DecodeArgs {
    /// Hex digits, or a file
    pub input: String,
    /// Which packet of a file, from 0
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub packet: u64,
    /// Write the tensors of a file of packets as safetensors
    #[arg(short, long, value_name = "FILE", conflicts_with = "packet")]
    pub output: Option<PathBuf>,
    /// With --output: whether a damaged packet ends this, or is left out and counted
    #[arg(long, value_name = "stop|drop", default_value = "stop", value_parser = ["stop", "drop"], hide_possible_values = true)]
    pub on_damage: String,
}

#[derive(Debug, Args)]
pub(crate) struct FlipArgs {
    /// Hex digits, or a file
    pub input: String,
    /// The bit, from 0: bit 0 is the lowest of the first byte, bit 8 the lowest of the second
    #[arg(required_unless_present = "every")]
    pub bit: Option<usize>,
    /// Flip each bit alone, and count what the checks notice
    #[arg(long, conflicts_with = "bit")]
    pub every: bool,
    /// Which packet of a file, from 0
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub packet: u64,
    /// Write the damaged packet to a file
    #[arg(short, long, value_name = "FILE", conflicts_with = "every")]
    pub output: Option<PathBuf>,
}

impl PacketArgs {
    /// Returns what is asked for.
    pub(crate) fn request(self) -> PacketRequest {
        match self.command {
            PacketCommand::Encode(args) => {
                let content = match (args.ids, args.text, args.hex, args.file, args.tensors) {
                    (Some(ids), ..) => PacketContent::Ids(ids),
                    (_, Some(text), ..) => PacketContent::Bytes(text.into_bytes()),
                    (_, _, Some(digits), ..) => PacketContent::Hex(digits),
                    (_, _, _, Some(file), _) => PacketContent::File(file),
                    (.., tensors) => PacketContent::Tensors(tensors.unwrap_or_default()),
                };
                let is_v1 = args.to == "v1";
                let (src, dst, typ) = (args.src, args.dst, args.typ);
                PacketRequest::Encode { content, src, dst, typ, is_v1, output: args.output }
            }
            PacketCommand::Decode(DecodeArgs { input, packet, output: None, .. }) => {
                PacketRequest::Decode { input, packet }
            }
            PacketCommand::Decode(DecodeArgs { input, output: Some(output), on_damage, .. }) => {
                PacketRequest::Tensors { input: input.into(), output, drop_damaged: on_damage == "drop" }
            }
            PacketCommand::Flip(FlipArgs { input, bit, packet, output, .. }) => {
                PacketRequest::Flip { input, packet, bit, output }
            }
            PacketCommand::Show { file } => PacketRequest::Show(file),
        }
    }
}
