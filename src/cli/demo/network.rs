//! A multi-layer perceptron, written out: dense layers, rectified between them, softmax at the end.
//!
//! A layer's parameters are one vector: weights, input by input (`weights[input * outputs + output]`), then one bias
//! for each output. That vector is also the bucket in which its gradient travels. Inner loops run over neighbouring
//! outputs, so that they vectorise without changing the order of any sum.

use std::ops::{Add, AddAssign, Div, Mul, Sub};

use super::random::Random;

/// What the network computes in: `f32` to train, `f64` to check gradients against differences.
pub trait Real:
    Copy
    + PartialOrd
    + From<f32>
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + AddAssign
{
    /// e to the power of this.
    fn exp(self) -> Self;
    /// The natural logarithm.
    fn ln(self) -> Self;
}

impl Real for f32 {
    fn exp(self) -> Self {
        self.exp()
    }
    fn ln(self) -> Self {
        self.ln()
    }
}

impl Real for f64 {
    fn exp(self) -> Self {
        self.exp()
    }
    fn ln(self) -> Self {
        self.ln()
    }
}

/// The shape of a network; parameters and activations are kept by the caller.
#[derive(Clone, Debug)]
pub struct Network {
    /// Values into the first layer, out of it and into the next, and so on.
    widths: Vec<usize>,
}

/// What a forward pass leaves behind: the outputs of each layer, image by image. The last are logits.
pub struct Activations<R>(Vec<Vec<R>>);

impl<R> Activations<R> {
    /// The logits, image by image.
    pub fn logits(&self) -> &[R] {
        self.0.last().map_or(&[], Vec::as_slice)
    }
}

impl Network {
    /// A network with `widths[0]` inputs, `widths[1]` outputs of the first layer, and so on.
    pub fn new(widths: &[usize]) -> Self {
        Self { widths: widths.to_vec() }
    }

    /// For each layer, first to last, how many inputs and outputs it has.
    fn layers(&self) -> impl DoubleEndedIterator<Item = (usize, usize)> + ExactSizeIterator + '_ {
        self.widths.windows(2).map(|pair| (pair[0], pair[1]))
    }

    /// The number of classes.
    fn classes(&self) -> usize {
        self.widths.last().copied().unwrap_or(0)
    }

    /// Parameters that are all zero: one vector a layer.
    pub fn zeros<R: Real>(&self) -> Vec<Vec<R>> {
        self.layers().map(|(inputs, outputs)| vec![R::from(0.0); (inputs + 1) * outputs]).collect()
    }

    /// Random weights that keep the variance of a rectified signal (He and others, 2015), and biases of zero.
    pub fn random(&self, random: &mut Random) -> Vec<Vec<f32>> {
        let mut parameters = self.zeros();
        for ((inputs, outputs), layer) in self.layers().zip(&mut parameters) {
            let bound = (6.0 / inputs as f32).sqrt();
            layer[..inputs * outputs].iter_mut().for_each(|weight| *weight = bound * random.symmetric());
        }
        parameters
    }

    /// Runs `images`, one after the other, through all layers.
    pub fn forward<R: Real>(&self, parameters: &[Vec<R>], images: &[R]) -> Activations<R> {
        let mut activations: Vec<Vec<R>> = Vec::with_capacity(parameters.len());
        for (number, ((inputs, outputs), layer)) in self.layers().zip(parameters).enumerate() {
            let (weights, biases) = layer.split_at(inputs * outputs);
            let source = activations.last().map_or(images, Vec::as_slice);
            let mut target = Vec::with_capacity(source.len() / inputs * outputs);
            for input in source.chunks_exact(inputs) {
                let start = target.len();
                target.extend_from_slice(biases);
                let output = &mut target[start..];
                for (&value, row) in input.iter().zip(weights.chunks_exact(outputs)) {
                    add_scaled(output, row, value);
                }
                if number + 2 < self.widths.len() {
                    output.iter_mut().for_each(|value| *value = rectified(*value));
                }
            }
            activations.push(target);
        }
        Activations(activations)
    }

    /// The sum over the images of the cross-entropy loss, and its slope by each logit.
    pub fn loss<R: Real>(&self, logits: &[R], labels: &[u8]) -> (R, Vec<R>) {
        let (zero, one) = (R::from(0.0), R::from(1.0));
        let mut loss = zero;
        let mut slopes = Vec::with_capacity(logits.len());
        for (logits, &label) in logits.chunks_exact(self.classes()).zip(labels) {
            let largest = logits.iter().copied().fold(logits[0], |a, b| if b > a { b } else { a });
            let start = slopes.len();
            slopes.extend(logits.iter().map(|&logit| (logit - largest).exp()));
            let powers = &mut slopes[start..];
            let sum = powers.iter().copied().fold(zero, |a, b| a + b);
            powers.iter_mut().for_each(|power| *power = *power / sum);
            let label = usize::from(label);
            loss += sum.ln() - (logits[label] - largest);
            powers[label] = powers[label] - one;
        }
        (loss, slopes)
    }

    /// Goes back through the layers from `slopes`, the loss's slope by each logit.
    ///
    /// Fills `gradients` with the slope by each parameter, summed over the images, from the last layer to the first,
    /// and calls `ready` with a layer's number and gradient as soon as that layer is done: from then on the gradient
    /// can travel while the layers before it are computed. The first error of `ready` ends the pass.
    pub fn backward<'g, R: Real, E>(
        &self,
        parameters: &[Vec<R>],
        images: &[R],
        activations: &Activations<R>,
        mut slopes: Vec<R>,
        gradients: &'g mut [Vec<R>],
        mut ready: impl FnMut(usize, &'g mut Vec<R>) -> Result<(), E>,
    ) -> Result<(), E> {
        let zero = R::from(0.0);
        for ((number, (inputs, outputs)), gradient) in self.layers().enumerate().zip(gradients).rev() {
            let source = if number == 0 { images } else { &activations.0[number - 1] };
            gradient.fill(zero);
            let (by_weight, by_bias) = gradient.split_at_mut(inputs * outputs);
            for (input, slope) in source.chunks_exact(inputs).zip(slopes.chunks_exact(outputs)) {
                add_scaled(by_bias, slope, R::from(1.0));
                for (&value, row) in input.iter().zip(by_weight.chunks_exact_mut(outputs)) {
                    // Half of all pixels and rectified values are zero.
                    if value != zero {
                        add_scaled(row, slope, value);
                    }
                }
            }
            ready(number, gradient)?;
            if number > 0 {
                let weights = &parameters[number][..inputs * outputs];
                let mut before = Vec::with_capacity(source.len());
                for (input, slope) in source.chunks_exact(inputs).zip(slopes.chunks_exact(outputs)) {
                    before.extend(
                        input
                            .iter()
                            .zip(weights.chunks_exact(outputs))
                            .map(|(&value, row)| if value > zero { dot(row, slope) } else { zero }),
                    );
                }
                slopes = before;
            }
        }
        Ok(())
    }

    /// How many images get their own digit.
    pub fn correct(&self, logits: &[f32], labels: &[u8]) -> usize {
        let guess = |logits: &[f32]| (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]));
        let guesses = logits.chunks_exact(self.classes()).map(guess);
        guesses.zip(labels).filter(|&(guess, &label)| guess == Some(usize::from(label))).count()
    }
}

/// The positive part.
fn rectified<R: Real>(value: R) -> R {
    if value > R::from(0.0) { value } else { R::from(0.0) }
}

/// `target += source * factor`.
fn add_scaled<R: Real>(target: &mut [R], source: &[R], factor: R) {
    for (target, &source) in target.iter_mut().zip(source) {
        *target += source * factor;
    }
}

/// The sum of the products, in eight interleaved partial sums, so that it vectorises.
fn dot<R: Real>(left: &[R], right: &[R]) -> R {
    const LANES: usize = 8;
    let mut sums = [R::from(0.0); LANES];
    let (left, right) = (left.chunks(LANES), right.chunks(LANES));
    for (left, right) in left.zip(right) {
        for ((sum, &a), &b) in sums.iter_mut().zip(left).zip(right) {
            *sum += a * b;
        }
    }
    sums.into_iter().fold(R::from(0.0), |a, b| a + b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    const WIDTHS: [usize; 4] = [5, 7, 9, 3];
    const LABELS: [u8; 4] = [2, 0, 1, 2];

    fn loss_of(network: &Network, parameters: &[Vec<f64>], images: &[f64]) -> f64 {
        network.loss(network.forward(parameters, images).logits(), &LABELS).0
    }

    /// Every parameter's slope against a central difference of the loss.
    #[test]
    fn gradients_are_the_slopes_of_the_loss() {
        let network = Network::new(&WIDTHS);
        let mut random = Random::new(3, 0);
        let mut parameters: Vec<Vec<f64>> =
            network.random(&mut random).iter().map(|layer| layer.iter().map(|&w| f64::from(w)).collect()).collect();
        for layer in &mut parameters {
            layer.iter_mut().for_each(|weight| *weight += f64::from(random.symmetric()) / 8.0);
        }
        let images: Vec<f64> = (0..LABELS.len() * WIDTHS[0]).map(|_| f64::from(random.symmetric())).collect();

        let activations = network.forward(&parameters, &images);
        let (_, slopes) = network.loss(activations.logits(), &LABELS);
        let mut gradients = network.zeros();
        let mut order = Vec::new();
        let ready = |number, _: &mut Vec<f64>| {
            order.push(number);
            Ok::<_, Infallible>(())
        };
        let Ok(()) = network.backward(&parameters, &images, &activations, slopes, &mut gradients, ready);
        assert_eq!(order, [2, 1, 0]);

        let step = 1e-6;
        for layer in 0..gradients.len() {
            for index in 0..gradients[layer].len() {
                let kept = parameters[layer][index];
                parameters[layer][index] = kept + step;
                let above = loss_of(&network, &parameters, &images);
                parameters[layer][index] = kept - step;
                let below = loss_of(&network, &parameters, &images);
                parameters[layer][index] = kept;
                let difference = (above - below) / (2.0 * step);
                let error = (difference - gradients[layer][index]).abs();
                assert!(error < 1e-7, "layer {layer}, parameter {index}: {difference} and {}", gradients[layer][index]);
            }
        }
        assert!(gradients.iter().all(|layer| layer.iter().any(|&slope| slope != 0.0)));
    }

    #[test]
    fn an_error_ends_the_backward_pass() {
        let network = Network::new(&WIDTHS);
        let parameters = network.random(&mut Random::new(0, 0));
        let images = vec![0.5; WIDTHS[0]];
        let activations = network.forward(&parameters, &images);
        let (_, slopes) = network.loss(activations.logits(), &[1]);
        let mut calls = 0;
        let result = network.backward(&parameters, &images, &activations, slopes, &mut network.zeros(), |_, _| {
            calls += 1;
            Err("broken")
        });
        assert_eq!((result, calls), (Err("broken"), 1));
    }

    #[test]
    fn the_largest_logit_is_the_guess() {
        let network = Network::new(&[1, 3]);
        assert_eq!(network.correct(&[0.0, 2.0, 1.0, 5.0, -1.0, 4.0], &[1, 2]), 1);
    }

    #[test]
    fn dot_products_cover_every_element() {
        for count in [0, 1, 7, 8, 9, 23] {
            let values: Vec<f64> = (0..count).map(f64::from).collect();
            assert_eq!(dot(&values, &values), values.iter().map(|v| v * v).sum::<f64>());
        }
    }
}
