/** What one resource adds to the API. `resources.ts` lists the resources; documents and clients are generated from them. */
import type { TSchema } from 'typebox';
import type { Operation } from './operation.ts';

export interface ApiResource {
  /** Sections of the documents, by the `tag` of the operations. A tag belongs to one resource. */
  readonly tags: Readonly<Record<string, string>>;
  readonly operations: Readonly<Record<string, Operation>>;
  /** Schemas that are components of the OpenAPI document, by name; their occurrences become references. */
  readonly schemas: Readonly<Record<string, TSchema>>;
}

/** Identifies the lists of one resource in their cursors. */
export interface CursorKind {
  readonly number: number;
}

const cursorNumbers = new Set<number>();

/**
 * Declares the cursors of a list.
 * @param number part of the wire form, 1 to 255: never reuse one
 */
export function cursorKind(number: number): CursorKind {
  if (!Number.isInteger(number) || number < 1 || number > 255)
    throw new RangeError(`a cursor kind has a number from 1 to 255, but was given ${number}`);
  if (cursorNumbers.has(number)) throw new Error(`two lists have cursors of kind ${number}`);
  cursorNumbers.add(number);
  return { number };
}
