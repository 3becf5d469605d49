import type { IncomingMessage, ServerResponse } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import {
  ApiError,
  BOUNDS,
  discardBody,
  FUNCTION_BROKEN_HEADER,
  FUNCTION_COLD_HEADER,
  FUNCTION_DURATION_HEADER,
  FUNCTION_QUEUE_HEADER,
  FUNCTION_STATUS_HEADER,
  FUNCTION_VERSION_HEADER,
  type GatewayFunction,
  type GatewayTarget,
  INVOCATION_ATTEMPT_HEADER,
  INVOCATION_ID_HEADER,
  isUuid,
  newUuid,
  outOfCredits,
  overloaded,
  QuotaExceeded,
  REQUEST_ID_HEADER,
} from '@releap/contract';
import type { FunctionLease, Grants } from '../control/grants.ts';
import { ClientDisconnected, sendError } from '../http/errors.ts';
import { type EventCounter, subjectOf } from '../http/event-counter.ts';
import type { Dispatcher } from './dispatcher.ts';
import { type Slot, VersionGone } from './function-version.ts';
import { corsHeaders, type FunctionCall, headersForClient, headersForHandler } from './function-route.ts';
import { callHandler, type HandlerOutcome } from './handler-call.ts';
import { bodyTooLarge } from './request-body.ts';
import type { RunningCall, RunningCalls } from './running-calls.ts';

/** Instances that one request is tried on while nothing was sent, and versions that it waits for. */
const ATTEMPTS_MAX = 3;
/** How long a new version of a function may take to be announced, in milliseconds. */
const GONE_MS = 1_000;
const GUESSES_RETRY_SECS = 60;

/** An invocation that has ended. */
export interface FinishedCall {
  id: string;
  queuedAt: Date;
  called: GatewayFunction;
  source: 'invoke' | 'public';
  status: 'succeeded' | 'failed' | 'timeout' | 'shed';
  /** Null when the handler did not get it. */
  startedAt: Date | null;
  durationMs: number | null;
  cold: boolean | null;
  error: string | null;
}

export interface FunctionServerOptions {
  grants: Pick<Grants, 'leaseFunction'>;
  dispatcher: Dispatcher;
  uploadIdleMs: number;
  running: RunningCalls;
  /** Of calls that control has refused, by address. */
  guesses: EventCounter;
  /** Of invocations that the gateway itself records. */
  onFinished: (call: FinishedCall) => void;
}

export interface FunctionRequest {
  call: FunctionCall;
  requestId: string;
  /** Of the client, or a proxy. */
  address: string;
  isProxy: boolean;
  /** The client as far as it is known; undefined behind a proxy that does not say it. */
  client: string | undefined;
  isTls: boolean;
  /** The client waits for `100 Continue` before it sends the body. */
  expectsContinue: boolean;
}

/** Serves calls of functions. */
export class FunctionServer {
  readonly #options: FunctionServerOptions;
  readonly #open = new Set<Promise<void>>();
  readonly #stopping = new AbortController();

  constructor(options: FunctionServerOptions) {
    this.#options = options;
  }

  /** @throws ApiError before the response has begun; ClientDisconnected */
  async serve(request: IncomingMessage, response: ServerResponse, asked: FunctionRequest): Promise<void> {
    const { isPublic, isPreflight } = asked.call;
    // On refusals too: the control plane trusts none of its own calls without it, which a proxy may have answered.
    const given = request.headers[INVOCATION_ID_HEADER];
    if (typeof given === 'string' && isUuid(given)) response.setHeader(INVOCATION_ID_HEADER, given);
    if (isPublic) {
      const cors = corsHeaders(isPreflight, request.headers['access-control-request-headers']);
      for (const [name, value] of Object.entries(cors)) response.setHeader(name, value ?? '');
      if (isPreflight) return void response.writeHead(204).end();
    }
    if (Number(request.headers['content-length'] ?? 0) > BOUNDS.invocationPayloadBytes)
      throw bodyTooLarge(BOUNDS.invocationPayloadBytes);
    const ended = new AbortController();
    const onClosed = (): void => {
      if (!response.writableFinished) ended.abort(new ClientDisconnected());
    };
    response.once('close', onClosed);
    const invocation = this.#invoke(request, response, asked, ended);
    this.#open.add(invocation);
    try {
      await invocation;
    } catch (error) {
      throw isPublic ? forStranger(error) : error;
    } finally {
      this.#open.delete(invocation);
      response.off('close', onClosed);
    }
  }

  /** Ends calls whose client is gone, now and later. Resolves when all calls have ended. */
  async close(): Promise<void> {
    this.#stopping.abort();
    await Promise.allSettled(this.#open);
  }

  async #invoke(
    request: IncomingMessage,
    response: ServerResponse,
    asked: FunctionRequest,
    /** Aborted when the client has disconnected or lost its credential. */
    ended: AbortController,
  ): Promise<void> {
    const { target, token, isPublic } = asked.call;
    const queuedAt = new Date();
    const source = isPublic ? 'public' : 'invoke';
    let id = newUuid();
    for (let attempt = 1; ; attempt++) {
      using lease = await this.#lease(target, token, asked.client);
      const called = lease.function;
      const isDispatched = called.dispatched === true;
      const given = request.headers[INVOCATION_ID_HEADER];
      if (isDispatched && typeof given === 'string' && isUuid(given)) id = given;
      response.setHeader(INVOCATION_ID_HEADER, id);
      const end = (
        call: Pick<FinishedCall, 'status' | 'startedAt' | 'durationMs' | 'cold' | 'error'>,
      ): void => {
        if (isDispatched) return;
        this.#options.onFinished({ id, queuedAt, called, source, ...call });
      };
      let slot: Slot;
      const onRevoked = (): void => ended.abort(lease.revoked.reason);
      lease.revoked.addEventListener('abort', onRevoked);
      try {
        const isPatient = isDispatched && request.headers[FUNCTION_QUEUE_HEADER] === 'wait';
        slot = await this.#options.dispatcher.acquire(called, ended.signal, isPatient);
      } catch (error) {
        if (error instanceof VersionGone) {
          if (attempt === ATTEMPTS_MAX) throw error.refusal;
          // What is known of the function is about to be revoked.
          const signal = AbortSignal.any([lease.retired, ended.signal]);
          await sleep(GONE_MS, undefined, { signal }).catch(() => undefined);
          continue;
        }
        const status = statusOfRefusal(error);
        if (status !== undefined)
          end({ status, startedAt: null, durationMs: null, cold: null, error: (error as Error).message });
        throw error;
      } finally {
        lease.revoked.removeEventListener('abort', onRevoked);
      }
      const calledAs = isDispatched ? attemptNumber(request) : null;
      // Of an older control server, which does not say the attempt, nothing is reported.
      using running =
        calledAs === undefined
          ? undefined
          : this.#options.running.add({
              id,
              queuedAt,
              called,
              source,
              attempt: calledAs,
              isCold: slot.isCold,
            });
      const outcome = await this.#call(request, response, slot, {
        asked,
        called,
        id,
        revoked: lease.revoked,
        running,
      });
      slot.done(outcome.end, outcome.durationMs);
      if (!outcome.isSent && outcome.end === 'broken' && attempt < ATTEMPTS_MAX) continue;
      end({
        ...judge(outcome),
        startedAt: outcome.startedAt,
        durationMs: outcome.startedAt === null ? null : outcome.durationMs,
        cold: slot.isCold,
      });
      if (outcome.error === undefined || outcome.isCut || response.headersSent) return;
      if (outcome.startedAt !== null) {
        const facts = answerHeaders(called, slot, outcome.durationMs);
        for (const [name, value] of Object.entries(facts)) response.setHeader(name, value);
        if (outcome.end === 'broken' && !outcome.isInvalid) response.setHeader(FUNCTION_BROKEN_HEADER, '1');
      }
      throw outcome.error;
    }
  }

  /**
   * Each unknown function or credential is a question to control, which answers few at a time.
   * @throws 429 when this client has asked too many
   */
  async #lease(
    target: GatewayTarget,
    token: string | null,
    client: string | undefined,
  ): Promise<FunctionLease> {
    const { grants, guesses } = this.#options;
    let guesser: string | undefined;
    const onUnknown = (): void => {
      if (client === undefined) return;
      const subject = subjectOf(client);
      if (guesses.isExceeded(subject))
        throw overloaded(
          'too many calls of this address were refused: try again in a minute',
          GUESSES_RETRY_SECS,
        );
      guesser = subject;
    };
    try {
      return await grants.leaseFunction(target, token, onUnknown);
    } catch (error) {
      if (guesser !== undefined && error instanceof ApiError && [401, 404].includes(error.status))
        guesses.add(guesser);
      throw error;
    }
  }

  #call(
    request: IncomingMessage,
    response: ServerResponse,
    slot: Slot,
    on: {
      asked: FunctionRequest;
      called: GatewayFunction;
      id: string;
      revoked: AbortSignal;
      running: RunningCall | undefined;
    },
  ): Promise<HandlerOutcome> {
    const { call, requestId, address, isProxy, isTls, expectsContinue } = on.asked;
    const { isPublic, path } = call;
    const { instance, revoked } = slot;
    return callHandler(request, response, {
      pool: instance.pool,
      path,
      headers: headersForHandler(request.headers, {
        isPublic,
        address,
        isProxy,
        isTls,
        invocationId: on.id,
        requestId,
      }),
      answer: (status, headers, elapsedMs) => [
        isPublic ? status : 200,
        {
          ...headersForClient(headers, isPublic),
          ...(!isPublic && (status === 204 || status === 304) && { 'content-length': '0' }),
          [FUNCTION_STATUS_HEADER]: String(status),
          ...answerHeaders(on.called, slot, elapsedMs),
          [REQUEST_ID_HEADER]: requestId,
        },
      ],
      timeoutMs: on.called.timeout_s * 1000,
      maxBodyBytes: BOUNDS.invocationPayloadBytes,
      uploadIdleMs: this.#options.uploadIdleMs,
      expectsContinue,
      onSent: () => on.running?.sent(),
      revoked: on.revoked,
      refuse: (error) => void refuseCall(request, response, error, expectsContinue),
      lost: revoked,
      stopping: this.#stopping.signal,
    });
  }
}

/** Of a call of the control plane. */
function attemptNumber(request: IncomingMessage): number | undefined {
  const number = Number(request.headers[INVOCATION_ATTEMPT_HEADER]);
  return Number.isSafeInteger(number) && number > 0 ? number : undefined;
}

function answerHeaders(
  { version }: GatewayFunction,
  { isCold }: Slot,
  elapsedMs: number,
): Record<string, string> {
  return {
    [FUNCTION_COLD_HEADER]: isCold ? '1' : '0',
    [FUNCTION_VERSION_HEADER]: String(version),
    [FUNCTION_DURATION_HEADER]: elapsedMs.toFixed(3),
  };
}

/** Refuses a call, once its client has sent the body, if it does without being asked. */
export async function refuseCall(
  request: IncomingMessage,
  response: ServerResponse,
  error: ApiError,
  expectsContinue: boolean,
): Promise<void> {
  sendError(response, error, expectsContinue ? request.complete : await discardBody(request));
}

/** What an organization may use, uses and has left is not for the callers of its public functions. */
function forStranger(error: unknown): unknown {
  if (error instanceof QuotaExceeded)
    return overloaded(
      'no instance had capacity for this request in time',
      Number(error.headers['retry-after']),
    );
  return error instanceof ApiError && error.status === 402 ? outOfCredits() : error;
}

/** Of a request that did not get an instance; undefined when it is not recorded, because it was not let in. */
function statusOfRefusal(error: unknown): 'shed' | 'failed' | undefined {
  if (error instanceof ClientDisconnected) return 'failed';
  if (!(error instanceof ApiError)) return undefined;
  return error.status === 429 ? 'shed' : error.status === 502 ? 'failed' : undefined;
}

function judge({ end, status, error }: HandlerOutcome): Pick<FinishedCall, 'status' | 'error'> {
  if (end === 'hung') return { status: 'timeout', error: error?.message ?? null };
  if (error instanceof ClientDisconnected) return { status: 'failed', error: 'the client disconnected' };
  if (error !== undefined) return { status: 'failed', error: error.message };
  if (status !== null && status < 400) return { status: 'succeeded', error: null };
  return { status: 'failed', error: `the handler answered ${status}` };
}
