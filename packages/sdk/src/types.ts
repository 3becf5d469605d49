/** The types of a client, derived from the schemas of the operations. */
import type { Operation } from '@releap/contract/wire';
import type { Static, TSchema } from 'typebox';
import type { RawAnswer } from './raw-answer.ts';

/** Optional fields may be `undefined`, which JSON and query strings leave out. */
type Loose<T> = T extends object
  ? { [K in keyof T]: object extends Pick<T, K> ? T[K] | undefined : T[K] }
  : T;

type Part<K extends string, V> = object extends V ? { [P in K]?: Loose<V> } : { [P in K]: Loose<V> };

type Field<O, K extends 'params' | 'query'> = O extends { [P in K]: infer S extends TSchema }
  ? Part<K, Static<S>>
  : unknown;

/** A body that is sent as it is. A stream is read once, so a call with one is never repeated. */
export type RawBody = string | Uint8Array<ArrayBuffer> | Blob | ReadableStream<Uint8Array>;

type Body<O> = O extends { consumes: readonly string[] }
  ? { body: RawBody }
  : O extends { body: infer S extends TSchema }
    ? Part<'body', Static<S>>
    : unknown;

/** What a call sends: `params`, `query` and `body`, as far as its operation has them. */
export type Input<O extends Operation> = Field<O, 'params'> & Field<O, 'query'> & Body<O>;

type Response<O extends Operation> = O['success']['response'];

/** What a call resolves to: the body of the answer; a `RawAnswer` where that is not JSON. */
export type Output<O extends Operation> =
  Response<O> extends { contentType: string }
    ? RawAnswer
    : Response<O> extends { schema: infer S extends TSchema }
      ? Static<S>
      : undefined;

/** How often a refusal (429, 503) is followed by another try, and which calls are repeated. */
export interface RetryPolicy {
  /** Tries in all. */
  attempts: number;
  /** Statuses that are tried again; 429 and 503 when absent. */
  statuses?: readonly number[];
  /** The longest pause between two tries, in seconds; 30 when absent. Without `Retry-After` a pause is 2 seconds. */
  longestPauseSecs?: number;
  /** Told before each pause. */
  onRefusal?: (error: Error) => void;
}

export interface CallOptions {
  signal?: AbortSignal;
  /** Until the answer is there, in milliseconds: all of it, or of a raw one its head. */
  timeoutMs?: number;
  /** Of a raw answer: the longest silence between two pieces of its body, in milliseconds; 0 for no limit. */
  idleMs?: number;
  retry?: RetryPolicy;
  /** For operations that take it; one is made up for a call that may be repeated. */
  idempotencyKey?: string;
  headers?: Readonly<Record<string, string>>;
}

export type Call<O extends Operation> =
  object extends Input<O>
    ? (input?: Input<O>, options?: CallOptions) => Promise<Output<O>>
    : (input: Input<O>, options?: CallOptions) => Promise<Output<O>>;

export type Operations = Readonly<Record<string, Operation>>;

/** A method an operation. One that opens a WebSocket has none. */
export type Client<T extends Operations> = {
  readonly [K in keyof T as T[K]['success']['status'] extends 101 ? never : K]: Call<T[K]>;
};
