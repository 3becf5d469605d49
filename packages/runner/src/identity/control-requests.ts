/** Requests of a runner to the control plane about its own credential. */
import { createHash, randomBytes } from 'node:crypto';
import {
  RUNNER_DATA_KEY_PATH,
  RUNNER_JOIN_PATH,
  RUNNER_PROTOCOL,
  type RunnerJoinRequest,
} from '@releap/contract';

export interface ControlPlace {
  /** Internal listener of the control plane. */
  controlUrl: string;
  /** Default: without TLS, or as authorities of this machine say. */
  fetch?: typeof fetch | undefined;
}

export interface Answer {
  status: number;
  body: unknown;
  path: string;
  /** Of this machine's clock, compared with the time of the answer, which has whole seconds. */
  aheadMs: number;
}

const ANSWER_MS = 10_000;
/** A machine whose clock differs by more does not join. Data tokens allow 30 s, and clocks drift apart. */
const CLOCK_MS = 15_000;
export const CREDENTIAL = /^rlpr_[A-Za-z0-9_-]{43}$/;

export const newCredential = (): string => `rlpr_${randomBytes(32).toString('base64url')}`;

/** @throws when it does not answer in time */
export async function postToControl(
  { controlUrl, fetch: send = fetch }: ControlPlace,
  path: string,
  token: string,
  body: unknown,
): Promise<Answer> {
  const response = await send(new URL(path, controlUrl), {
    method: 'POST',
    headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' },
    body: JSON.stringify(body),
    signal: AbortSignal.timeout(ANSWER_MS),
  });
  const text = await response.text();
  let parsed: unknown;
  try {
    parsed = JSON.parse(text);
  } catch {
    parsed = undefined;
  }
  const sentAt = Date.parse(response.headers.get('date') ?? '');
  const aheadMs = Number.isNaN(sentAt) ? 0 : Date.now() - sentAt;
  return { status: response.status, body: parsed, path, aheadMs };
}

/** The key of data tokens, of a credential that the control plane accepts. 401: it does not. */
export const requestDataKey = (place: ControlPlace, credential: string): Promise<Answer> =>
  postToControl(place, RUNNER_DATA_KEY_PATH, credential, {});

/**
 * Registers a credential.
 * @param token a join token, the present credential, or the operator's permission
 * @param deploymentId that the machine has joined before
 */
export const requestJoin = (
  place: ControlPlace,
  token: string,
  {
    runnerId,
    credential,
    deploymentId,
  }: { runnerId: string; credential: string; deploymentId?: string | undefined },
): Promise<Answer> =>
  postToControl(place, RUNNER_JOIN_PATH, token, {
    runner_id: runnerId,
    credential_sha256: createHash('sha256').update(credential).digest('hex'),
    protocol: RUNNER_PROTOCOL,
    ...(deploymentId !== undefined && { deployment_id: deploymentId }),
  } satisfies RunnerJoinRequest);

/** @throws when the clock of this machine is wrong, or that of the control plane */
export function assertClock({ aheadMs }: Answer): void {
  const seconds = Math.round(Math.abs(aheadMs) / 1000);
  if (Math.abs(aheadMs) > CLOCK_MS)
    throw new Error(
      `the clock of this machine is ${seconds} s ${aheadMs > 0 ? 'ahead of' : 'behind'} that of the control plane: ` +
        'synchronise both before it joins (data tokens and certificates have times)',
    );
}

export function refusal({ status, body, path }: Answer): Error {
  const error = (body as { error?: unknown } | undefined)?.error;
  const hint = status === 404 ? ' (RELEAP_CONTROL_URL must name the internal listener)' : '';
  return new Error(
    `${path} answered ${status}${typeof error === 'string' ? `: ${error.slice(0, 300)}` : ''}${hint}`,
  );
}
