/** Credentials of the worlds that tests share. */
import { createHash } from 'node:crypto';
import { RUNNER_DATA_KEY_PATH, RUNNER_JOIN_PATH, type RunnerDataKey } from '@releap/contract';
import type { ControlTokens } from '@releap/control';
import { jwtVerify } from 'jose';

export const OPERATOR_TOKEN = 'operator-token-of-the-tests-0123456789abcdef';
export const METRICS_TOKEN = 'metrics-token-of-the-tests-0123456789abcdef';
export const GATEWAY_TOKEN = 'gateway-token-of-the-tests-0123456789abcdef';
export const JOIN_TOKEN = 'join-token-of-the-tests-0123456789abcdef';

export const TOKENS: ControlTokens = {
  operator: () => [OPERATOR_TOKEN],
  metrics: () => [METRICS_TOKEN],
  gateway: () => [GATEWAY_TOKEN],
  join: () => [JOIN_TOKEN],
};

/** The credential that the scripted runner of this id has: the same in every process. */
export function credentialOf(runnerId: string): string {
  return `rlpr_${createHash('sha256').update(`test runner ${runnerId}`).digest('base64url')}`;
}

export async function postInternal(
  internalUrl: string,
  path: string,
  token: string,
  body: unknown,
): Promise<Response> {
  return fetch(internalUrl + path, {
    method: 'POST',
    headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' },
    body: JSON.stringify(body),
  });
}

/** Registers the credential of a scripted runner. Again, it changes nothing. */
export async function joinAs(
  internalUrl: string,
  runnerId: string,
  { token = JOIN_TOKEN, credential = credentialOf(runnerId) } = {},
): Promise<Response> {
  return postInternal(internalUrl, RUNNER_JOIN_PATH, token, {
    runner_id: runnerId,
    credential_sha256: createHash('sha256').update(credential).digest('hex'),
  });
}

export async function dataKeyOf(internalUrl: string, credential: string): Promise<RunnerDataKey> {
  const answer = await postInternal(internalUrl, RUNNER_DATA_KEY_PATH, credential, {});
  if (answer.status !== 200) throw new Error(`no data key: ${answer.status} ${await answer.text()}`);
  return (await answer.json()) as RunnerDataKey;
}

/** Whether this is a data token for that sandbox on that runner. */
export async function opens(
  { key_id, key }: RunnerDataKey,
  token: string,
  runnerId: string,
  sandboxUuid: string,
): Promise<boolean> {
  try {
    const { protectedHeader } = await jwtVerify(token, Buffer.from(key, 'base64url'), {
      audience: runnerId,
      subject: sandboxUuid,
      requiredClaims: ['exp'],
    });
    return protectedHeader.kid === key_id;
  } catch {
    return false;
  }
}
