//! Prompts, checks of answers, and statistics for comparing models.
