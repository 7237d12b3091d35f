//! Transformers as layers of a Stovepipe pipeline.
