import type { ApiError } from '@releap/contract';

/** An error with an answer of its own: where nothing catches it, this plane answers with its refusal. */
export abstract class RefusableError extends Error {
  abstract refusal(): ApiError;
}
