import assert from 'node:assert/strict';

/** Calls of an API whose responses tests read unchanged. */
export interface Answer {
  status: number;
  headers: Headers;
  text: string;
  // oxlint-disable-next-line typescript/no-explicit-any -- tests read arbitrary bodies
  body: any;
}

export interface Caller {
  (method: string, path: string, body?: unknown, init?: RequestInit): Promise<Answer>;
  readonly key: string;
  readonly projectId: string;
}

export function caller(base: () => string, key: string, projectId: string): Caller {
  const call = async (
    method: string,
    path: string,
    body?: unknown,
    init: RequestInit = {},
  ): Promise<Answer> => {
    const response = await fetch(base() + path, {
      method,
      ...init,
      headers: {
        ...(key === '' ? {} : { authorization: `Bearer ${key}` }),
        ...(body === undefined ? {} : { 'content-type': 'application/json' }),
        ...(init.headers as Record<string, string> | undefined),
      },
      ...(body === undefined ? {} : { body: typeof body === 'string' ? body : JSON.stringify(body) }),
    });
    const text = await response.text();
    let parsed: unknown;
    try {
      parsed = JSON.parse(text);
    } catch {
      parsed = undefined;
    }
    return { status: response.status, headers: response.headers, text, body: parsed };
  };
  return Object.assign(call, { key, projectId });
}

/** Sends a request with an Idempotency-Key again while an earlier one is in progress: it is not waited for without a limit. */
export async function untilAnswered(send: () => Promise<Answer>): Promise<Answer> {
  for (;;) {
    const answer = await send();
    if (answer.body?.code !== 'idempotency_in_progress') return answer;
  }
}

/** An error without the id of its request, which must be that of the header. */
export function refusalOf({ headers, body }: Answer): unknown {
  const { request_id: requestId, ...refusal } = body;
  assert.equal(requestId, headers.get('x-request-id'));
  return refusal;
}

/** The text of an error, as all requests that are refused alike get it. */
export function sharedText({ text }: Pick<Answer, 'text'>): string {
  return text.replace(/"request_id":"[^"]*"/, '"request_id":"#"');
}
