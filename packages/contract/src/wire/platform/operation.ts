/** The form of an operation of the API, of a resource with its operations, and of the header that makes creates repeatable. */
import type { TSchema } from 'typebox';
import type { ErrorCode, ErrorStatus } from './errors.ts';

/**
 * The plane and its credential. `workload`: a project's API key. `sandbox`: that, or the sandbox's access token.
 * `management`: a user's OIDC token. `operator`: its token. `runner`: the credential of one runner.
 * `public`: none.
 */
export type Security = 'workload' | 'sandbox' | 'management' | 'public' | 'operator' | 'runner' | 'gateway';

export interface OperationResponse {
  description: string;
  /** Absent: there is no body. */
  schema?: TSchema;
  /** Default `application/json`. */
  contentType?: string;
}

/** Absent bounds have the defaults of `UPLOAD_LIMITS`. */
export interface UploadLimits {
  /** Of the body, or of each file of a form, in bytes. */
  bytes?: number;
  /** Files of a form. */
  files?: number;
  /** Other fields of a form, and the bytes of each. */
  fields?: number;
  fieldBytes?: number;
}

export const UPLOAD_LIMITS: Required<UploadLimits> = {
  bytes: 64 * 1024 * 1024,
  files: 1,
  fields: 32,
  fieldBytes: 1024 * 1024,
};

export interface Operation {
  /**
   * Who serves it: the control plane when absent; `toolbox`: a gateway, below `{toolbox_proxy_url}/{vm_id}`; `gateway`: a gateway,
   * to which the control plane passes requests on.
   */
  server?: 'toolbox' | 'gateway';
  method: 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE';
  /** With parameters as `:name`, below the base URL. */
  path: string;
  /** Section of the documents: a tag of the operation's resource (resource.ts). */
  tag: string;
  summary: string;
  /** Markdown, more than the summary says. */
  description?: string;
  security: Security;
  /** Health checks are not rate limited. */
  rateLimited?: false;
  params?: TSchema;
  query?: TSchema;
  body?: TSchema;
  /** The parts of a `multipart/form-data` body, for the documents; the handler checks them. */
  form?: TSchema;
  /**
   * Content types of the body; only `application/json` when absent. Bodies of all others are streamed to the handler:
   * `multipart/form-data` part by part, the rest as bytes. A wildcard takes any.
   */
  consumes?: readonly string[];
  /** Bounds of a streamed body. */
  upload?: UploadLimits;
  /** Accepts `Idempotency-Key`: an interrupted request is run again with the same ids. */
  idempotent?: true;
  /** Of a list: the field of the response that has the items. */
  items?: string;
  /** Of an operation that is a WebSocket. */
  websocket?: WebSocketDescription;
  /** The response on success. */
  success: { status: 101 | 200 | 201 | 204; response: OperationResponse };
  /** Meanings of the error statuses. Common ones are added by `operationErrors`. */
  errors: Partial<Record<ErrorStatus, string>>;
  /**
   * Codes of its errors, beside the general ones of their statuses, those of what the path names, and those of the plane:
   * `operationErrors` adds them.
   */
  codes?: readonly ErrorCode[];
}

export interface WebSocketMessages {
  /** Text messages, each one JSON document of this form. */
  text?: TSchema;
  /** What binary messages hold. */
  binary?: string;
}

/** `x-websocket` of the OpenAPI document. */
export interface WebSocketDescription {
  /** The query that makes the operation a WebSocket, where it can be a plain request too. */
  when?: string;
  /** Subprotocols that a client may offer, with their meaning. */
  subprotocols?: Readonly<Record<string, string>>;
  client: WebSocketMessages;
  server: WebSocketMessages;
  /** Meanings of the close codes. */
  closes: Readonly<Record<number, string>>;
}

/** What one resource adds to the API. `wire/operations.ts` lists the resources; documents and clients are generated from them. */
export interface ApiResource {
  /** Sections of the documents, by the `tag` of the operations. A tag belongs to one resource. */
  readonly tags: Readonly<Record<string, string>>;
  readonly operations: Readonly<Record<string, Operation>>;
  /** Schemas that are components of the OpenAPI document, by name; their occurrences become references. */
  readonly schemas: Readonly<Record<string, TSchema>>;
}

/** The request header of idempotency keys, with which a creating request is repeated without creating twice. */
export const IDEMPOTENCY_HEADER = 'idempotency-key';
/** Header of a replayed response: `true`. */
export const REPLAYED_HEADER = 'idempotency-replayed';
/** Longest key, in characters. */
export const IDEMPOTENCY_KEY_CHARS = 255;
/** Lifetime of a recorded response, in milliseconds. */
export const IDEMPOTENCY_TTL_MS = 24 * 3_600_000;

/** Visible ASCII, so that it survives every proxy unchanged. */
export function isIdempotencyKey(text: string): boolean {
  return text.length <= IDEMPOTENCY_KEY_CHARS && /^[\x21-\x7e]+$/.test(text);
}
