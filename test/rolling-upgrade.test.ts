/**
 * Upgrades under load: control servers, gateways and hosts are replaced one at a time, by the next version and then by the previous one
 * again. It takes many minutes: in the nightly run, or alone with `RELEAP_TEST_UPGRADE=1`.
 */
import assert from 'node:assert/strict';
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import type { EndpointRecord } from '@releap/contract';
import { eventually } from '@releap/testing/eventually';
import { COUNTER, COUNTS } from '@releap/testing/guest-programs';
import { isNightly } from '@releap/testing/repetitions';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import {
  CUTS_REQUESTS,
  installPrevious,
  type Installation,
  PREVIOUS,
  THIS,
  whyNoPrevious,
} from './support/previous-version.ts';
import { type Deployment, startDeployment } from './support/rolling-deployment.ts';
import { type Part, PATIENCE_MS } from './support/rolling-parts.ts';
import { type Answer, SteadyLoad } from './support/steady-load.ts';

const isAsked = isNightly() || process.env['RELEAP_TEST_UPGRADE'] === '1';
const skip = isAsked ? await whyNoPrevious() : 'takes many minutes: nightly, or with RELEAP_TEST_UPGRADE=1';
const SMALL = { image: 'busybox', cpu: 0.125, mem_mib: 128, scratch_mib: 64 };
const SANDBOXES = 4;
const PORT = 8080;
/** Of the requests that failed. */
const SHOWN = 20;
/** Of the function that takes long. */
const CALL_S = 15;
const HANDLER = `mkdir -p /tmp/www/cgi-bin && mkfifo /tmp/tick && printf '%s' "$PROGRAM" > /tmp/www/cgi-bin/index.cgi &&
  chmod +x /tmp/www/cgi-bin/index.cgi && exec httpd -f -p "$RLP_FN_PORT" -h /tmp/www`;
const PROGRAM = `#!/bin/sh
if [ "\${CONTENT_LENGTH:-0}" -gt 2 ]; then read -t ${CALL_S} line <> /tmp/tick; fi
printf 'Content-Type: text/plain\\r\\n\\r\\nserved'
`;

interface Sandbox {
  id: string;
  host: string;
  preview: URL;
}

describe('an upgrade under load', { skip: skip ?? false }, () => {
  let folder: string;
  let previous: Installation;
  let deployment: Deployment;
  const load = new SteadyLoad();
  const sandboxes: Sandbox[] = [];
  const away: { part: string; to: string; ms: number }[] = [];
  let ephemeral = 0;
  let writes = 0;
  let longCalls = 0;

  const authorized = () => ({ authorization: `Bearer ${deployment.key}` });
  const call = async (
    kind: string,
    method: string,
    path: string,
    body?: unknown,
    port = deployment.api.port,
  ) =>
    await load.send(
      { kind, port, method, path, headers: authorized(), body },
      ({ status }) => status === 200 || status === 204,
    );
  /** As `call`, for what must succeed before the test can continue. */
  const must = async <T = Record<string, unknown>>(
    method: string,
    path: string,
    body?: unknown,
  ): Promise<T> => {
    const answer = await call('set-up', method, path, body);
    assert.ok(answer, load.failures.join('\n'));
    return (answer.text === '' ? {} : JSON.parse(answer.text)) as T;
  };
  const exec = async (
    kind: string,
    id: string,
    command: string,
    port = deployment.toolbox.port,
  ): Promise<string | undefined> => {
    const answer = await load.send(
      {
        kind,
        port,
        method: 'POST',
        path: `/toolbox/${id}/process/execute`,
        headers: authorized(),
        body: { command },
      },
      isRun,
    );
    return answer && (JSON.parse(answer.text) as { result: string }).result;
  };
  const isRun = ({ status, text }: Answer): boolean =>
    status === 200 && (JSON.parse(text) as { exitCode: number }).exitCode === 0;
  const untilStatus = async (id: string, status: string): Promise<void> => {
    await eventually(
      `${id} is ${status}`,
      async () => {
        const { status: now, error } = await must<{ status: string; error?: string }>('GET', `/vms/${id}`);
        assert.ok(now !== 'failed' && now !== 'lost', `${id} is ${now}: ${error}`);
        return now === status;
      },
      PATIENCE_MS,
    );
  };

  before(async () => {
    folder = await temporaryFolder('releap-up-');
    previous = await installPrevious(join(folder, 'previous'));
    deployment = await startDeployment(folder, previous);
    await must('POST', '/volumes', { name: 'kept', size_gb: 1 });
    await Promise.all(Array.from({ length: SANDBOXES }, (_, at) => makeSandbox(at)));
    await must('POST', '/fns', {
      name: 'slow',
      image: 'busybox',
      handler: ['sh', '-c', HANDLER],
      env: { PROGRAM },
      mem_mib: 128,
      scratch_mib: 64,
      max_concurrency: 4,
      max_instances: 3,
      timeout_s: 1800,
      scaledown_window_s: 3600,
    });
    await slowCall('', deployment.api.port);
    putLoad();
  });
  after(async () => {
    await load.stop();
    for (const { id } of sandboxes) await call('clean-up', 'DELETE', `/vms/${id}`);
    await call('clean-up', 'DELETE', '/fns/slow');
    for (const { id } of sandboxes) await untilStatus(id, 'deleted').catch(() => undefined);
    await deployment?.[Symbol.asyncDispose]();
    if (folder !== undefined) await rm(folder, { recursive: true, force: true });
  });

  /** With a file, a process that counts, and a page; the first one with a volume. */
  async function makeSandbox(at: number): Promise<void> {
    const volumes = at === 0 ? { volumes: [{ volume: 'kept', mount_path: '/data' }] } : {};
    const { vm_id: id } = await must<{ vm_id: string }>('POST', '/vms', {
      ...SMALL,
      persistent: true,
      ...volumes,
    });
    await untilStatus(id, 'running');
    await exec(
      'set-up',
      id,
      `echo of-${at} > /file; sync; mkfifo /tmp/tick; mkdir -p /www; echo page-${at} > /www/index.html; httpd -p ${PORT} -h /www; ${COUNTER}`,
    );
    const { url } = await must<EndpointRecord>('POST', `/vms/${id}/endpoints`, { port: PORT, public: true });
    const { runner_id: host } = await must<{ runner_id: string }>('GET', `/vms/${id}`);
    sandboxes[at] = { id, host, preview: new URL(url) };
  }

  async function slowCall(payload: string, port: number): Promise<string | undefined> {
    return (await call('call of a function', 'POST', '/fns/slow/invoke', payload, port))?.text;
  }

  function putLoad(): void {
    let turn = 0;
    const next = (): [Sandbox, number] => {
      const at = (turn += 1) % sandboxes.length;
      const sandbox = sandboxes[at];
      assert.ok(sandbox);
      return [sandbox, at];
    };
    load.repeat(300, async () => {
      const [{ id }, at] = next();
      const result = await exec('exec', id, 'read line < /file; echo $line');
      assert.ok(result === undefined || result === `of-${at}\n`, result);
    });
    load.repeat(200, async () => {
      const [{ preview }, at] = next();
      await load.send(
        { kind: 'preview', port: deployment.previews.port, path: '/', headers: { host: preview.host } },
        ({ status, text }) => status === 200 && text === `page-${at}\n`,
      );
    });
    load.repeat(200, async () => void (await call('read of the API', 'GET', `/vms/${next()[0].id}`)));
    load.repeat(1_000, async () => void (await slowCall('', deployment.api.port)));
    load.repeat(1_000, async () => {
      writes += 1;
      const result = await exec(
        'volume',
        sandboxes[0]?.id ?? '',
        `echo ${writes} > /data/n; read n < /data/n; echo $n`,
      );
      assert.ok(result === undefined || result === `${writes}\n`, result);
    });
    load.repeat(2_000, async () => {
      const made = await call('create', 'POST', '/vms', SMALL);
      if (made === undefined) return;
      const { vm_id: id } = JSON.parse(made.text) as { vm_id: string };
      const end = await call('wait', 'GET', `/vms/${id}?wait_exact=running&timeout_ms=60000`);
      if (end !== undefined)
        assert.match(end.text, /"status":"(running|queued|assigned|starting|creating)"/, end.text);
      await call('delete', 'DELETE', `/vms/${id}`);
      ephemeral += 1;
    });
  }

  /** A command and a call that begin at a server, and end while it drains. */
  async function replace(part: Part, port: number, to: Installation): Promise<void> {
    load.phase = `${part.name} to ${to.name}`;
    longCalls += 1;
    const name = `${longCalls}`;
    const [, holder] = sandboxes;
    assert.ok(holder);
    const long =
      part.role === 'gateway'
        ? exec(
            'long command',
            holder.id,
            `: > /tmp/begun-${name}; while [ ! -e /tmp/go-${name} ]; do read -t 0.3 x <> /tmp/tick; done; echo drained`,
            port,
          )
        : slowCall(`wait ${name}`, port);
    if (part.role === 'gateway')
      await exec(
        'exec',
        holder.id,
        `while [ ! -e /tmp/begun-${name} ]; do read -t 0.3 x <> /tmp/tick; done; :`,
      );
    // The call is at its handler when another one that was sent later has been answered by this server.
    else await slowCall('', port);
    const began = performance.now();
    const ended = part.signal();
    if (part.role === 'gateway') {
      await eventually(`${part.name} drains`, async () => {
        const answer = await fetch(part.probe, { headers: { connection: 'close' } });
        return answer.status === 503;
      });
      await exec('exec', holder.id, `: > /tmp/go-${name}`);
    }
    assert.equal(await long, part.role === 'gateway' ? 'drained\n' : 'served', load.failures.join('\n'));
    assert.equal(await ended, 0, part.output);
    await part.start(to);
    await settle(part, to, began);
  }

  /** Its sandboxes continue meanwhile, and the next one re-attaches to them. */
  async function replaceRunner(part: Part, to: Installation): Promise<void> {
    load.phase = `${part.name} to ${to.name}`;
    load.isCutting = CUTS_REQUESTS;
    const began = performance.now();
    assert.equal(await part.signal(), 0, part.output);
    await part.start(to);
    await settle(part, to, began);
    load.isCutting = false;
  }

  /** Every kind of request is answered some more times with what runs now. */
  async function settle(part: Part, to: Installation, began: number): Promise<void> {
    away.push({ part: part.name, to: to.name, ms: Math.round(performance.now() - began) });
    const before = new Map([...load.counts].map(([kind, { sent }]) => [kind, sent]));
    const kinds = ['exec', 'preview', 'read of the API', 'call of a function', 'volume', 'delete'];
    await eventually(
      'all clients continue',
      () => kinds.every((kind) => (load.counts.get(kind)?.sent ?? 0) >= (before.get(kind) ?? 0) + 2),
      PATIENCE_MS,
    );
  }

  async function replaceAll(to: Installation): Promise<void> {
    const { controls, gateways } = deployment.parts;
    for (const [at, part] of controls.entries()) await replace(part, deployment.controlPorts[at] ?? 0, to);
    for (const [at, part] of gateways.entries()) await replace(part, deployment.gatewayPorts[at] ?? 0, to);
  }

  async function replaceRunners(to: Installation): Promise<void> {
    for (const part of deployment.parts.runners) await replaceRunner(part, to);
  }

  it('replaces control servers and gateways by the next version', () => replaceAll(THIS));

  it('replaces the runners by the next version', () => replaceRunners(THIS));

  it('replaces the runners by the previous version again', () => replaceRunners(previous));

  it('replaces control servers and gateways by the previous version again, on the schema of the next one', () =>
    replaceAll(previous));

  it('loses no sandbox, and fails no request', async (t) => {
    load.phase = 'end';
    await load.stop();
    const lost: string[] = [];
    for (const [at, { id }] of sandboxes.entries()) {
      const counts = await exec('check', id, `${COUNTS} && read line < /file && echo $line`);
      if (counts !== `of-${at}\n`) lost.push(`${id}: ${counts}`);
    }
    const { sent, refused, failed } = load.totals;
    t.diagnostic(`from ${PREVIOUS} to this checkout and back`);
    for (const { part, to, ms } of away) t.diagnostic(`${part} to ${to}: away ${ms} ms`);
    for (const [kind, one] of load.counts)
      t.diagnostic(
        `${kind}: failed ${one.failed} of ${one.sent} (${one.refused} times 503 with Retry-After)`,
      );
    const elsewhere = deployment.balancers.reduce((sum, one) => sum + one.ledElsewhere, 0);
    t.diagnostic(`connections that a server refused and another one got: ${elsewhere}`);
    t.diagnostic(`ephemeral sandboxes: ${ephemeral}, long calls drained: ${longCalls}`);
    t.diagnostic(`requests that a runner of the previous version cut, and clients repeated: ${load.cut}`);
    t.diagnostic(`lost ${lost.length} of ${sandboxes.length + ephemeral}`);
    t.diagnostic(`failed ${failed} of ${sent} (${refused} times 503)`);
    assert.deepEqual(lost, []);
    assert.equal(load.failures.length, 0, load.failures.slice(0, SHOWN).join('\n'));
  });
});
