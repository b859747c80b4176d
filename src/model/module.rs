//! Iteration over the parameters of a module, for every part of a model.
//!
//! A part lists its fields once, in the order of the forward pass, by [`module!`]. All code that iterates
//! over parameters or linear layers (gradients, the optimizer, checkpoints, adapters, exports) uses that
//! list.

use crate::linear::{Linear, Lora};
use crate::param::Param;

/// An item of the iteration: a linear layer with its bias and adapter, or a parameter outside of linear
/// layers.
pub(crate) enum Part<'a> {
    Linear(&'a Linear),
    Param(&'a Param),
}

/// Like [`Part`], with mutable references.
pub(crate) enum PartMut<'a> {
    Linear(&'a mut Linear),
    Param(&'a mut Param),
}

/// A part of a model.
pub(crate) trait Module {
    /// Calls `f` for every part, in the order of the forward pass.
    fn walk<'a>(&'a self, f: &mut dyn FnMut(Part<'a>));

    /// Like [`walk`](Self::walk), with mutable references.
    fn walk_mut<'a>(&'a mut self, f: &mut dyn FnMut(PartMut<'a>));

    /// Calls `f` for every parameter, including adapters.
    fn visit<'a>(&'a self, f: &mut dyn FnMut(&'a Param)) {
        self.walk(&mut |part| match part {
            Part::Param(param) => f(param),
            Part::Linear(Linear { weight, bias, lora, .. }) => {
                let lora = lora.iter().flat_map(|Lora { a, b, .. }| [a, b]);
                std::iter::once(weight).chain(bias).chain(lora).for_each(&mut *f);
            }
        });
    }

    /// Like [`visit`](Self::visit), with mutable references.
    fn visit_mut(&mut self, f: &mut dyn FnMut(&mut Param)) {
        self.walk_mut(&mut |part| match part {
            PartMut::Param(param) => f(param),
            PartMut::Linear(Linear { weight, bias, lora, .. }) => {
                let lora = lora.iter_mut().flat_map(|Lora { a, b, .. }| [a, b]);
                std::iter::once(weight).chain(bias).chain(lora).for_each(&mut *f);
            }
        });
    }

    /// Returns every linear layer.
    fn linears(&self) -> Vec<&Linear> {
        let mut linears = Vec::new();
        self.walk(&mut |part| match part {
            Part::Linear(linear) => linears.push(linear),
            Part::Param(_) => {}
        });
        linears
    }

    /// Like [`linears`](Self::linears), with mutable references.
    fn linears_mut(&mut self) -> Vec<&mut Linear> {
        let mut linears = Vec::new();
        self.walk_mut(&mut |part| match part {
            PartMut::Linear(linear) => linears.push(linear),
            PartMut::Param(_) => {}
        });
        linears
    }

    /// Makes every parameter trainable, or none.
    fn set_trainable(&mut self, trainable: bool) {
        self.visit_mut(&mut |param| param.set_trainable(trainable));
    }
}

/// Implements [`Module`] by the fields of a struct that hold parameters, in the order of the forward pass.
macro_rules! module {
    ($part:ty { $($field:ident),+ $(,)? }) => {
        impl $crate::module::Module for $part {
            fn walk<'a>(&'a self, f: &mut dyn FnMut($crate::module::Part<'a>)) {
                $($crate::module::Module::walk(&self.$field, f);)+
            }

            fn walk_mut<'a>(&'a mut self, f: &mut dyn FnMut($crate::module::PartMut<'a>)) {
                $($crate::module::Module::walk_mut(&mut self.$field, f);)+
            }
        }
    };
}
pub(crate) use module;

impl Module for Param {
    fn walk<'a>(&'a self, f: &mut dyn FnMut(Part<'a>)) {
        f(Part::Param(self));
    }

    fn walk_mut<'a>(&'a mut self, f: &mut dyn FnMut(PartMut<'a>)) {
        f(PartMut::Param(self));
    }
}

impl Module for Linear {
    fn walk<'a>(&'a self, f: &mut dyn FnMut(Part<'a>)) {
        f(Part::Linear(self));
    }

    fn walk_mut<'a>(&'a mut self, f: &mut dyn FnMut(PartMut<'a>)) {
        f(PartMut::Linear(self));
    }
}

impl<M: Module> Module for Box<M> {
    fn walk<'a>(&'a self, f: &mut dyn FnMut(Part<'a>)) {
        M::walk(self, f);
    }

    fn walk_mut<'a>(&'a mut self, f: &mut dyn FnMut(PartMut<'a>)) {
        M::walk_mut(self, f);
    }
}

/// Implements [`Module`] for several modules of the same kind in sequence.
macro_rules! module_of_many {
    ($([$($generics:tt)*] $many:ty;)+) => { $(
        impl<$($generics)*> Module for $many {
            fn walk<'a>(&'a self, f: &mut dyn FnMut(Part<'a>)) {
                self.iter().for_each(|part| part.walk(f));
            }

            fn walk_mut<'a>(&'a mut self, f: &mut dyn FnMut(PartMut<'a>)) {
                self.iter_mut().for_each(|part| part.walk_mut(f));
            }
        }
    )+ };
}

module_of_many! {
    [M: Module] Option<M>;
    [M: Module] Vec<M>;
    [M: Module, const N: usize] [M; N];
}
