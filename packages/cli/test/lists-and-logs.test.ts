import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { json, rlp } from './rlp.ts';
import { newUuid } from '@releap/contract';
import { send, startService } from './service.ts';

describe('rlp ps', () => {
  test('lists all pages, newest first, without the deleted ones', async () => {
    await using service = await startService();
    for (const name of ['one', 'two', 'three']) service.add(name);
    service.add('gone', { status: 'deleted' });
    const { stdout, code } = await rlp(service, ['ps']);
    assert.equal(code, 0);
    const names = stdout.split('\n').map((line) => line.split(/\s+/)[1]);
    assert.deepEqual(names, ['NAME', 'three', 'two', 'one', undefined]);
    assert.equal((await rlp(service, ['ps', '-a', '-q'])).stdout.trim().split('\n').length, 4);
    assert.equal((JSON.parse((await rlp(service, ['ps', '--json'])).stdout) as unknown[]).length, 3);
  });

  test('shows ports, and no control characters of strangers', async () => {
    await using service = await startService();
    const port_map = [{ vm_port: 80, proto: 'tcp' as const, host_port: 31_000 }];
    service.add('evil\u001b]0;title\u0007', { port_map, host_ip: '10.0.0.1' });
    const { stdout } = await rlp(service, ['ps']);
    assert.match(stdout, /10\.0\.0\.1:31000->80\/tcp/);
    // oxlint-disable-next-line no-control-regex -- control characters are what is looked for
    assert.doesNotMatch(stdout, /[\u001b\u0007]/);
  });

  test('in a pipe has no colours and ends quietly when the reader goes', async () => {
    await using service = await startService();
    service.add('web');
    const outcome = await rlp(service, ['ps'], { started: (child) => child.stdout?.destroy() });
    assert.deepEqual(outcome, { code: 0, stdout: '', stderr: '' });
  });
});

describe('rlp rm', () => {
  test('deletes each, goes on after one that is unknown, and tells', async () => {
    await using service = await startService();
    const [a, b] = [service.add('a'), service.add('b')];
    const outcome = await rlp(service, ['rm', 'a', 'nobody', 'b']);
    assert.equal(outcome.code, 4);
    assert.equal(outcome.stdout, `${a.id}\n${b.id}\n`);
    assert.match(outcome.stderr, /nobody/);
  });

  test('-f makes unknown ones no error, --wait waits until they are gone', async () => {
    await using service = await startService();
    const sandbox = service.add('a');
    assert.equal((await rlp(service, ['rm', '-f', 'nobody'])).code, 0);
    assert.equal((await rlp(service, ['rm', '--wait', 'a'])).code, 0);
    assert.equal(sandbox.status, 'deleted');
  });
});

describe('rlp logs', () => {
  test('prints the entrypoint, or the console', async () => {
    await using service = await startService();
    service.add('web');
    service.logs.set('entrypoint-logs', ['hello\n']).set('logs', ['Linux version\n']);
    assert.equal((await rlp(service, ['logs', 'web'])).stdout, 'hello\n');
    assert.equal((await rlp(service, ['logs', '--console', 'web'])).stdout, 'Linux version\n');
    assert.equal(json(await rlp(service, ['logs', '--json', 'web']))['text'], 'hello\n');
  });

  test('-f goes on where an answer ended, printing nothing twice, until the sandbox has ended', async () => {
    await using service = await startService();
    service.add('web', {
      status: 'running',
      coming: ['running', 'running', 'running', 'deleting', 'deleted'],
    });
    service.logs.set('entrypoint-logs', ['one\n', 'one\ntwo\n', 'one\ntwo\n', 'one\ntwo\nthree\n']);
    const outcome = await rlp(service, ['logs', '-f', 'web']);
    assert.deepEqual(outcome, { code: 0, stdout: 'one\ntwo\nthree\n', stderr: '' });
  });

  test('-f waits for a log that is not there yet', async () => {
    await using service = await startService();
    const sandbox = service.add('web', { status: 'pending', coming: ['pending', 'running', 'deleted'] });
    const path = `GET /vms/${sandbox.id}/entrypoint-logs`;
    let reads = 0;
    service.special.set(path, (_request, response) =>
      reads++ === 0 ? send(response, 404, { error: 'not placed' }) : false,
    );
    service.logs.set('entrypoint-logs', ['late\n']);
    assert.deepEqual(await rlp(service, ['logs', '-f', 'web']), { code: 0, stdout: 'late\n', stderr: '' });
  });

  test('Ctrl-C ends -f', async () => {
    await using service = await startService();
    service.add('web');
    service.logs.set('entrypoint-logs', ['on\n']);
    const outcome = await rlp(service, ['logs', '-f', 'web'], {
      started: (child) => child.stdout?.once('data', () => child.kill('SIGINT')),
    });
    assert.equal(outcome.code, 130);
  });
});

describe('rlp images', () => {
  test('lists them', async () => {
    await using service = await startService();
    service.images.push({
      id: newUuid(),
      name: 'app',
      source: { type: 'registry', ref: 'node:20' },
      status: 'ready',
      layer_count: 3,
      docker: false,
      manifest_name: 'sha256:0123456789abcdef',
    });
    const { stdout } = await rlp(service, ['images']);
    assert.match(stdout, /app\s+ready\s+node:20\s+3\s+sha256:0123456789ab/);
    assert.equal((await rlp(service, ['images', 'ls', '--json'])).code, 0);
  });

  test('create waits for its job and tells why it failed', async () => {
    await using service = await startService();
    let status = 'done';
    const [image, job] = [newUuid(), newUuid()];
    service.special.set('POST /images', (_request, response) =>
      send(response, 200, { image_id: image, job_id: job, name: 'app', status: 'pending', region: 'local' }),
    );
    service.special.set(`GET /jobs/${job}`, (_request, response) =>
      send(response, 200, {
        id: job,
        kind: 'build',
        status,
        attempts: 1,
        error: status === 'failed' ? 'no such manifest' : null,
      }),
    );
    assert.deepEqual(await rlp(service, ['images', 'create', 'app', 'node:20']), {
      code: 0,
      stdout: `${image}\n`,
      stderr: '',
    });
    status = 'failed';
    const failed = await rlp(service, ['images', 'create', 'app', 'node:20']);
    assert.equal(failed.code, 1);
    assert.match(failed.stderr, /no such manifest/);
  });
});
