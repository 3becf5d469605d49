/** `GET /jobs/:id/logs`: read from the host while it has the log, then the end that is stored with the job. */
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { describe, it } from 'node:test';
import type { BuildJob } from '@releap/testing/runner-messages';
import { startWorld, until, type Caller } from '@releap/testing/world';

const jobs = new Map<string, BuildJob>();
// Builds of this test do not end by themselves.
const world = await startWorld({ limits: { buildsPerProject: 1, buildsPerRunner: 100 } });
const runner = await world.runner({ build: (job) => void jobs.set(job.job_id, job) });

async function post(call: Caller, name: string): Promise<string> {
  const source = { type: 'dockerfile', dockerfile: 'FROM a' };
  return (await call('POST', '/images', { name, source })).body.job_id as string;
}

async function building(call: Caller, name: string): Promise<BuildJob> {
  const id = await post(call, name);
  await until(() => jobs.has(id));
  return jobs.get(id) as BuildJob;
}

async function fail(job: BuildJob, logTail?: string): Promise<void> {
  const seq = runner.built(job, { error: 'failed', ...(logTail === undefined ? {} : { log_tail: logTail }) });
  await until(() => runner.acked >= seq);
}

describe('GET /jobs/:id/logs', () => {
  it('passes the log of the host through, also while it grows', async () => {
    const call = await world.stranger();
    const { job_id: id } = await building(call, 'app');
    runner.logs.set(`/builds/${id}/logs`, (_request, response) => response.end('step 1 ✓\n'));
    const answer = await call('GET', `/jobs/${id}/logs`);
    assert.deepEqual([answer.status, answer.text], [200, 'step 1 ✓\n']);
    assert.match(answer.headers.get('content-type') ?? '', /^text\/plain/);
    assert.equal(answer.headers.get('x-content-type-options'), 'nosniff');
    let next = (): void => undefined;
    runner.logs.set(`/builds/${id}/logs?follow=1`, (_request, response) => {
      response.write('one\n');
      next = () => response.end('two\n');
    });
    const response = await fetch(`${world.url}/jobs/${id}/logs?follow=1`, {
      headers: { authorization: `Bearer ${call.key}` },
    });
    let text = '';
    for await (const chunk of response.body ?? []) {
      text += Buffer.from(chunk).toString();
      if (text === 'one\n') next();
    }
    assert.equal(text, 'one\ntwo\n');
  });

  it('answers at once while the build has printed nothing', async () => {
    const call = await world.stranger();
    const { job_id: id } = await building(call, 'app');
    let end = (): void => undefined;
    runner.logs.set(`/builds/${id}/logs?follow=1`, (_request, response) => {
      response.flushHeaders();
      end = () => response.end('first');
    });
    // Nothing is written before the response has begun.
    const response = await fetch(`${world.url}/jobs/${id}/logs?follow=1`, {
      headers: { authorization: `Bearer ${call.key}` },
    });
    assert.equal(response.status, 200);
    end();
    assert.equal(await response.text(), 'first');
  });

  it('with follow waits for a build that is queued, and ends when that is cancelled', async () => {
    const call = await world.stranger();
    const first = await building(call, 'app');
    const [second, third] = [await post(call, 'second'), await post(call, 'third')];
    runner.logs.set(`/builds/${second}/logs?follow=1`, (_request, response) => response.end('it has begun'));
    const followed = call('GET', `/jobs/${second}/logs?follow=1`);
    const cancelled = call('GET', `/jobs/${third}/logs?follow=1`);
    await fail(first);
    assert.equal((await followed).text, 'it has begun');
    assert.equal((await call('DELETE', '/images/third')).status, 204);
    assert.equal((await cancelled).status, 404);
  });

  it('of a build that has ended is the whole log while its host has it, then its end', async () => {
    const call = await world.stranger();
    const job = await building(call, 'app');
    const path = `/builds/${job.job_id}/logs`;
    runner.logs.set(path, (_request, response) => response.end('all of it'));
    await fail(job, 'the end of it');
    const read = () => call('GET', `/jobs/${job.job_id}/logs`);
    assert.equal((await read()).text, 'all of it');
    runner.logs.delete(path);
    assert.equal((await read()).text, 'the end of it');
    runner.logs.set(path, (request) => request.socket.destroy());
    assert.equal((await read()).text, 'the end of it');
  });

  it('404: a build that is queued, one without a log, another job, and one of another project', async () => {
    const [call, other] = [await world.stranger(), await world.stranger()];
    const job = await building(call, 'app');
    const queued = await call('GET', `/jobs/${await post(call, 'second')}/logs`);
    assert.equal(queued.status, 404);
    assert.match(queued.body.error, /is queued and has no log yet/);
    const running = await call('GET', `/jobs/${job.job_id}/logs`);
    assert.deepEqual([running.status, running.body.error], [404, `job "${job.job_id}" has no log`]);
    await fail(job);
    assert.equal((await call('GET', `/jobs/${job.job_id}/logs`)).status, 404);
    const vm = await call('POST', '/vms', { image: 'busybox' });
    const create = await call('GET', `/jobs/${vm.body.job_id}/logs`);
    assert.equal(create.status, 404);
    assert.match(create.body.error, /is of kind vm\.create and has no log/);
    for (const [by, id] of [
      [other, job.job_id],
      [call, randomUUID()],
      [call, 'x'],
    ] as const)
      assert.equal((await by('GET', `/jobs/${id}/logs`)).body.error, `job "${id}" not found`);
  });

  it('502: the host does not answer', async () => {
    const call = await world.stranger();
    const { job_id: id } = await building(call, 'app');
    runner.logs.set(`/builds/${id}/logs`, (request) => request.socket.destroy());
    const answer = await call('GET', `/jobs/${id}/logs`);
    assert.equal(answer.status, 502);
    assert.match(answer.body.error, /the host of job ".*" did not answer/);
  });
});
