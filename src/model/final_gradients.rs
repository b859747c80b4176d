//! Hands out the gradients of a backward pass while it goes on, as soon as they are final.
//!
//! The backward pass visits the ops of a graph strictly by their depth, and every op of a layer depends on
//! the layer's input. So when an op of a layer adds to the gradient of a weight, all ops of the layers above
//! it, and those of the head, have run: the sums of their weights are final, however often each weight was
//! used. No op needs to know this; it is seen by watching the sums.
//!
//! What is not known here is left to the end of the pass: gradients that burn itself adds up (norms, biases,
//! other vectors, weights of shapes that no kernel fits, and adapters of a rank that is padded), the lowest
//! trained layer, and the embedding.

use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::Tensor;
use sparktune_kernels::GradientSum;

use crate::param::Param;

/// Gets the name of a parameter and its final gradient, f32 outside autodiff, on the thread of the backward
/// pass. A device may still have to compute the numbers.
pub type OnFinal = Arc<dyn Fn(&str, Tensor<2>) + Send + Sync>;

/// Watches a backward pass until it is dropped.
pub(crate) struct Watch {
    _groups: Arc<Groups>,
}

struct Groups {
    /// The sums of the head and of each layer, in the order of the backward pass.
    all: Vec<Vec<(String, GradientSum)>>,
    /// The number of groups that were handed out.
    done: Mutex<usize>,
    on_final: OnFinal,
}

impl Watch {
    /// Watches groups of parameters in the order of the backward pass. All ops with the weights of a group
    /// must depend on results of all later groups.
    pub(crate) fn start<'a>(groups: impl Iterator<Item = Vec<&'a Param>>, on_final: &OnFinal) -> Self {
        let sums = |params: Vec<&Param>| {
            let trained = params.into_iter().filter(|param| param.is_trainable());
            trained.map(|param| (param.name().to_owned(), param.gradient_sum().clone())).collect()
        };
        let (all, done) = (groups.map(sums).collect(), Mutex::new(0));
        let groups = Arc::new(Groups { all, done, on_final: Arc::clone(on_final) });
        for (place, group) in groups.all.iter().enumerate() {
            // The sums must not keep what contains them alive.
            let watching = Arc::downgrade(&groups);
            let on_add = Arc::new(move || {
                if let Some(groups) = watching.upgrade() {
                    groups.begun(place);
                }
            });
            group.iter().for_each(|(_, sum)| sum.watch(on_add.clone()));
        }
        Self { _groups: groups }
    }
}

impl Groups {
    /// Hands out the groups before this one.
    fn begun(&self, place: usize) {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        while *done < place {
            for (name, sum) in &self.all[*done] {
                if let Some(total) = sum.take_added() {
                    (self.on_final)(name, total);
                }
            }
            *done += 1;
        }
    }
}
