/** The gateway is killed while handlers serve its calls. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { type IncomingMessage, request } from 'node:http';
import { join } from 'node:path';
import { text as textOf } from 'node:stream/consumers';
import { eventually } from '@releap/testing/eventually';
import type { Service } from '@releap/testing/service';

const NAME = 'in-flight';
/** Connections that wait for busybox's web server: of more than 9 the guest drops some, and they fail while it is slow. */
const AT_ONCE = 8;
/** Says that it has begun, and answers calls with an empty body only: the others wait for what never comes. */
const PROGRAM = `#!/bin/sh
if [ "\${CONTENT_LENGTH:-0}" -gt 0 ]; then echo begun >&2; read -r line < /tmp/never; fi
printf 'Content-Type: text/plain\\r\\n\\r\\nserved'
`;
const SCRIPT = `mkdir -p /tmp/www/cgi-bin && mkfifo /tmp/never && printf '%s' "$PROGRAM" > /tmp/www/cgi-bin/index.cgi &&
  chmod +x /tmp/www/cgi-bin/index.cgi && exec httpd -f -p "$RLP_FN_PORT" -h /tmp/www`;

interface Answer {
  status: number;
  text: string;
  invocation: string;
}

/** @throws unless all calls end with a clear error, the next ones are served, no instance is left, and no call is recorded twice */
export async function killGatewayWithCalls(service: Service, calls: number): Promise<void> {
  const { base_url: url, api_key: key } = service.bootstrap;
  const { status, body } = await service.call('POST', '/fns', {
    name: NAME,
    image: 'busybox',
    handler: ['sh', '-c', SCRIPT],
    env: { PROGRAM },
    mem_mib: 128,
    scratch_mib: 64,
    max_concurrency: calls,
    max_instances: 1,
    timeout_s: 1800,
    scaledown_window_s: 2,
  });
  assert.equal(status, 200, JSON.stringify(body));
  const call = async (payload: string): Promise<Answer> => {
    // fetch() gives up after 5 minutes without an answer.
    const asked = request(`${url}/fns/${NAME}/invoke`, {
      method: 'POST',
      headers: { authorization: `Bearer ${key}` },
      agent: false,
    });
    asked.end(payload);
    const [answer] = (await once(asked, 'response')) as [IncomingMessage];
    return {
      status: answer.statusCode ?? 0,
      text: await textOf(answer),
      invocation: String(answer.headers['x-rlp-invocation-id']),
    };
  };
  const served = async (): Promise<Answer> =>
    eventually('a call is served', async () => {
      const answer = await call('');
      if (answer.status !== 200) throw new Error(`${answer.status}: ${answer.text}`);
      return answer;
    });
  const before = await served();

  const inFlight: Promise<Answer>[] = [];
  const early: Answer[] = [];
  while (inFlight.length < calls) {
    const more = Array.from({ length: Math.min(AT_ONCE, calls - inFlight.length) }, () => call('x'));
    for (const one of more)
      one.then(
        (answer) => early.push(answer),
        () => undefined,
      );
    inFlight.push(...more);
    await eventually(`${inFlight.length} handlers have begun`, async () => {
      const log = await fetch(`${url}/fns/${NAME}/logs`, { headers: { authorization: `Bearer ${key}` } });
      const begun = (await log.text()).split('begun').length - 1;
      if (begun < inFlight.length) throw new Error(`${begun} have; ${JSON.stringify(early)}`);
      return true;
    });
  }
  await service.kill9('gateway');
  for (const { status: ended, text } of await Promise.all(inFlight)) {
    assert.equal(ended, 502, text);
    assert.match(text, /the gateway closed the connection before it answered; the function may have run/);
  }
  const after = [await served(), await served()];

  // The instance that the killed gateway had ends too, though nothing has released it.
  await eventually('no instance is left', async () => (await instances(service)) === 0);
  const recorded = await eventually('the calls are recorded', async () => {
    const { body: log } = await service.call<{ invocations: { id: string }[] }>(
      'GET',
      `/fns/${NAME}/invocations?limit=1000`,
    );
    const ids = log.invocations.map(({ id }) => id);
    return after.every(({ invocation }) => ids.includes(invocation)) && ids;
  });
  assert.equal(new Set(recorded).size, recorded.length);
  assert.ok(recorded.includes(before.invocation));
  const { body: report } = await service.call<{ functions: { total: number }[] }>(
    'GET',
    `/fns/usage/report?fn=${NAME}`,
  );
  assert.equal(report.functions[0]?.total, recorded.length);
  assert.equal((await service.call('DELETE', `/fns/${NAME}`)).status, 204);
}

/** Sandboxes on all hosts that the project does not see, nor are about to end. */
async function instances(service: Service): Promise<number> {
  const token = (await readFile(join(service.home, 'operator.token'), 'utf8')).trim();
  const answer = await fetch(`${service.bootstrap.internal_url}/operator/hosts`, {
    headers: { authorization: `Bearer ${token}` },
  });
  const { hosts } = (await answer.json()) as { hosts: { sandboxes: Record<string, number> }[] };
  const all = hosts.flatMap(({ sandboxes }) => Object.values(sandboxes)).reduce((sum, n) => sum + n, 0);
  const { body } = await service.call<{ vms: unknown[] }>('GET', '/vms');
  return all - body.vms.length;
}
