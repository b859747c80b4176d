//! Stands in for the program in the kernel on systems other than Linux, and in builds without it.

use std::convert::Infallible;

use crate::xdp::frame::{Action, Route};
use crate::xdp::slots::{Counts, Job};

/// The reason why the kernel does not add, or does not give results to AF_XDP.
#[derive(Debug, thiserror::Error)]
#[error("this program was built without XDP")]
pub struct Refusal;

/// A program that does not exist.
pub struct Kernel(Infallible);

#[expect(missing_docs, reason = "as for the program that exists")]
impl Kernel {
    pub fn load(_: Job, _: Route) -> Result<Self, Refusal> {
        Err(Refusal)
    }

    pub fn attach(&mut self, _: &str, _: u32) -> Result<(), Refusal> {
        match self.0 {}
    }

    pub fn passing(_: &str) -> Result<Self, Refusal> {
        Err(Refusal)
    }

    pub fn run(&self, _: &mut Vec<u8>) -> Result<Action, Refusal> {
        match self.0 {}
    }

    pub fn run_often(&self, _: &mut Vec<u8>, _: u32) -> Result<(Action, u64), Refusal> {
        match self.0 {}
    }

    pub fn counts(&self) -> Result<Counts, Refusal> {
        match self.0 {}
    }
}
