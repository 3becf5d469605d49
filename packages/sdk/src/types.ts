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

/** A raw body. A stream is read once, so a call with one is never retried. */
export type RawBody = string | Uint8Array<ArrayBuffer> | Blob | ReadableStream<Uint8Array>;

/** Of an operation that takes JSON and forms: a stream is an encoded form, whose `content-type` is given with the call. */
export type FormBody = FormData | ReadableStream<Uint8Array>;

type Body<O> = O extends { consumes: readonly string[] }
  ? O extends { form: TSchema; body: infer S extends TSchema }
    ? { body: Loose<Static<S>> | FormBody }
    : { body: RawBody }
  : O extends { body: infer S extends TSchema }
    ? Part<'body', Static<S>>
    : unknown;

/** The input of a call: `params`, `query` and `body`, if its operation has them. */
export type Input<O extends Operation> = Field<O, 'params'> & Field<O, 'query'> & Body<O>;

type Response<O extends Operation> = O['success']['response'];

/** The result of a call: the body of the response; a `RawAnswer` if it is not JSON. */
export type Output<O extends Operation> =
  Response<O> extends { contentType: string }
    ? RawAnswer
    : Response<O> extends { schema: infer S extends TSchema }
      ? Static<S>
      : undefined;

/** Retries of refused calls (429, 503). */
export interface RetryPolicy {
  /** Attempts in total. */
  attempts: number;
  /** Retried statuses; default 429 and 503. */
  statuses?: readonly number[];
  /** Longest pause between two attempts, in seconds; default 30. Without `Retry-After` a pause is 2 seconds. */
  longestPauseSecs?: number;
  /** Called before each pause. */
  onRefusal?: (error: Error) => void;
}

export interface CallOptions {
  signal?: AbortSignal;
  /** Timeout of the response in milliseconds: of all of it, or of the head of a raw one. */
  timeoutMs?: number;
  /** Of a raw response: the longest time between two chunks of its body, in milliseconds; 0 for no limit. */
  idleMs?: number;
  retry?: RetryPolicy;
  /** For operations that accept it; generated for a call that may be retried. */
  idempotencyKey?: string;
  headers?: Readonly<Record<string, string>>;
}

export type Call<O extends Operation> =
  object extends Input<O>
    ? (input?: Input<O>, options?: CallOptions) => Promise<Output<O>>
    : (input: Input<O>, options?: CallOptions) => Promise<Output<O>>;

export type Operations = Readonly<Record<string, Operation>>;

/** One method per operation, except those that open a WebSocket. */
export type Client<T extends Operations> = {
  readonly [K in keyof T as T[K]['success']['status'] extends 101 ? never : K]: Call<T[K]>;
};
