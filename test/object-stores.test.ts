import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { CreateBucketCommand, GetObjectCommand, PutObjectCommand } from '@aws-sdk/client-s3';
import { eventually } from '@releap/testing/eventually';
import { isNightly } from '@releap/testing/repetitions';
import { startS3Server, type TestS3Server } from '@releap/testing/s3-server';
import type { Service } from '@releap/testing/service';
import { sharedService } from '@releap/testing/shared-service';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { StoreFaults } from './support/store-faults.ts';
import { terminal } from './support/terminal.ts';

const SMALL = { image: 'busybox', cpu: 1, mem_mib: 512, scratch_mib: 128, persistent: true };
/** Of a read that fails: some attempts, each of which may be silent for half a minute. */
const READ_END_MS = 300_000;
/** Of an upload that has failed for a while: the pauses between its attempts grow. */
const UPLOAD_MS = 300_000;
/** How long the server refuses everything, in the nightly run. */
const BUSY_MS = 60_000;

describe('mounted object stores', () => {
  let service: Service;
  let s3: TestS3Server;
  let faults: StoreFaults;
  let id: string;
  let folder: string;
  const { output, rlp } = terminal(() => ({ service, folder }));
  const REAL_KEY = 'testing';

  const run = async (command: string): Promise<{ code: number; out: string }> => {
    const { exitCode, result } = await service.exec(id, command);
    return { code: exitCode, out: result };
  };
  const ok = async (command: string): Promise<string> => {
    const { code, out } = await run(command);
    assert.equal(code, 0, `${command}: ${out}`);
    return out;
  };
  const put = (Key: string, Body: string) =>
    s3.client.send(new PutObjectCommand({ Bucket: 'data', Key, Body }));
  const read = async (Key: string): Promise<string | undefined> => {
    try {
      const found = await s3.client.send(new GetObjectCommand({ Bucket: 'data', Key }));
      return await found.Body?.transformToString();
    } catch {
      return undefined;
    }
  };
  const secret = async (name: string, value: string) =>
    assert.equal((await service.call('PUT', `/secrets/${name}`, { value })).status, 204);

  before(async () => {
    service = await sharedService();
    folder = await temporaryFolder('stores-e2e-');
    s3 = await startS3Server(folder);
    await s3.client.send(new CreateBucketCommand({ Bucket: 'data' }));
    faults = new StoreFaults(s3.endpoint);
    const endpoint = await faults.listen();
    await secret('S3_ID', s3.credentials.accessKeyId);
    await secret('S3_KEY', REAL_KEY);
    await secret('S3_TOKEN', 'first');
    const store = { bucket: 'data', access_key_secret: 'S3_ID', secret_key_secret: 'S3_KEY', endpoint };
    for (const [name, more] of [
      ['models', { prefix: 'models', path_style: true, dir_cache_secs: 1 }],
      ['all', { path_style: true, read_only: true }],
      ['sts', { prefix: 'sts', path_style: true, dir_cache_secs: 1, session_token_secret: 'S3_TOKEN' }],
    ] as const) {
      const made = await service.call('POST', '/object-stores', { ...store, name, ...more });
      assert.equal(made.status, 200, JSON.stringify(made.body));
    }
    await put('models/a.txt', 'first');
    await put('outside.txt', 'not below the prefix');
    ({ id } = await service.create({
      ...SMALL,
      object_store_mounts: [{ object_store: 'models', mount_path: '/mnt/models' }],
      egress_policy: { enabled: true, allow: [] },
    }));
  });
  after(async () => {
    if (id !== undefined) await service.remove(id);
    for (const name of ['models', 'all', 'sts']) await service.call('DELETE', `/object-stores/${name}`);
    for (const name of ['S3_ID', 'S3_KEY', 'S3_TOKEN']) await service.call('DELETE', `/secrets/${name}`);
    faults?.close();
    await s3?.[Symbol.asyncDispose]();
    await service?.[Symbol.asyncDispose]();
  });

  const mountsOf = async () =>
    (
      await service.call<{ object_store_mounts: { object_store: string; mount_path: string }[] }>(
        'GET',
        `/vms/${id}/object-store-mounts`,
      )
    ).body.object_store_mounts.map(({ object_store, mount_path }) => `${object_store} ${mount_path}`);
  const mount = (body: object) => service.call('POST', `/vms/${id}/object-store-mounts`, body);
  const unmount = (name: string) => service.call('DELETE', `/vms/${id}/object-store-mounts/${name}`);
  const change = async (operation: string, status: string) => {
    assert.equal((await service.call('POST', `/vms/${id}/${operation}`)).status, 200, operation);
    await eventually(`${operation} of the sandbox`, async () => {
      const { body } = await service.call('GET', `/vms/${id}?wait_exact=${status}&timeout_ms=60000`);
      return body['status'] === status;
    });
  };

  /** Writes a file, and closes it when the server answers every request with 503: to open it may read its folder. */
  const closedWhileBusy = async (name: string) => {
    const [path, close] = [`/mnt/models/${name}`, `/tmp/close-${name}`];
    const writer = `(echo ${name}; until [ -e ${close} ]; do sleep 0.1; done) > ${path} 2> /dev/null`;
    await ok(`${writer} & until [ -s ${path} ]; do sleep 0.1; done`);
    faults.mode = 'busy';
    await ok(`touch ${close}`);
  };

  test('are there from the start, although the egress policy allows nothing, for every user', async () => {
    assert.equal(await ok('cat /mnt/models/a.txt; ls /mnt/models'), 'firsta.txt\n');
    // A new file, a folder, one that is appended to, one that is renamed: by root and by another user.
    await ok('cd /mnt/models && mkdir dir && echo one > dir/log && echo two >> dir/log && echo x > tmp');
    // The object is there a moment before the mount knows that it has uploaded it, and a file renamed meanwhile leaves it behind.
    await eventually('the upload of the old name', async () =>
      (await run(`grep -q '"Dirty": false' $(find /var/cache/releap-stores -path '*vfsMeta*' -name tmp)`))
        .code === 0
        ? true
        : undefined,
    );
    await ok('cd /mnt/models && mv tmp "na me"');
    const { exitCode } = await service.exec(id, 'echo mine > /mnt/models/user', { user: '1000' });
    assert.equal(exitCode, 0);
    for (const [key, content] of [
      ['models/dir/log', 'one\ntwo\n'],
      ['models/na me', 'x\n'],
      ['models/user', 'mine\n'],
    ] as const)
      await eventually(`${key} in the bucket`, async () =>
        (await read(key)) === content ? true : undefined,
      );
    await eventually('the old name is gone', async () =>
      (await read('models/tmp')) === undefined ? true : undefined,
    );
    await ok('rm "/mnt/models/na me"');
    await eventually('its removal', async () =>
      (await read('models/na me')) === undefined ? true : undefined,
    );
    await put('models/new', 'by another');
    await eventually('what another has written', async () =>
      (await run('cat /mnt/models/new')).out === 'by another' ? true : undefined,
    );
  });

  test('have no credential of the bucket inside, and what is inside opens nothing else', async () => {
    const inside = await ok(
      'for p in $(pidof storemount); do cat /proc/$p/comm; tr "\\0" "\\n" < /proc/$p/environ; cat /proc/$p/cmdline; done',
    );
    assert.match(inside, /^storemount\n(.*\n)*PATH=/);
    assert.doesNotMatch(inside, /testing|test:tester/);
    assert.equal(
      await ok('grep -l -e test:tester -r /mnt/models /var/cache/releap-stores/vfs* /etc /tmp || true'),
      '',
    );
    // Without a signature, and at the address of the bucket itself.
    assert.match(
      (await run('wget -S -O - http://172.16.0.1:7079/data/models/a.txt 2>&1')).out,
      /403 Forbidden/,
    );
    assert.notEqual((await run(`wget -T 5 -O - ${s3.endpoint}/data/models/a.txt`)).code, 0);
  });

  test('come and go while it runs, with the refusals of the API', async () => {
    const made = await mount({ object_store: 'all', mount_path: '/mnt/all/' });
    assert.deepEqual([made.status, made.body['mount_path'], made.body['read_only']], [200, '/mnt/all', true]);
    assert.equal(await ok('cat /mnt/all/outside.txt'), 'not below the prefix');
    assert.match((await run('echo x > /mnt/all/no')).out, /Read-only file system/);
    assert.deepEqual(await mountsOf(), ['all /mnt/all', 'models /mnt/models']);
    for (const [body, status, said] of [
      [{ object_store: 'all', mount_path: '/mnt/models' }, 409, /already mounted/],
      [{ object_store: 'all', mount_path: '/mnt/models/dir' }, 409, /one in the other/],
      [{ object_store: 'none', mount_path: '/x' }, 404, /object store "none" not found/],
      [{ object_store: 'all', mount_path: 'x' }, 400, /must be absolute/],
      [{ object_store: 'all', mount_path: '/proc/x' }, 400, /reserved/],
      [{ object_store: 'all', mount_path: '/etc/passwd' }, 409, /rejected the mount/],
    ] as const) {
      const answer = await mount(body);
      assert.equal(answer.status, status, JSON.stringify(answer.body));
      assert.match(String(answer.body['error']), said);
    }
    assert.equal((await service.call('DELETE', '/object-stores/all')).status, 409);
    await ok('cd /mnt/all && (sleep 1000 > /dev/null 2>&1 < outside.txt & echo $! > /tmp/holder)');
    const busy = await unmount('all');
    assert.deepEqual([busy.status, /files in it are open/.test(String(busy.body['error']))], [409, true]);
    await ok('kill $(cat /tmp/holder); while kill -0 $(cat /tmp/holder) 2> /dev/null; do sleep 0.1; done');
    const gone = await unmount('all');
    assert.deepEqual([gone.status, gone.body['mount_paths']], [200, ['/mnt/all']]);
    assert.equal((await unmount('all')).status, 404);
    assert.equal(await ok('ls /mnt/all'), '');
    assert.deepEqual(await mountsOf(), ['models /mnt/models']);
  });

  test('are made again by the same request when they are not there, which 409 tells apart', async () => {
    const body = { object_store: 'all', mount_path: '/mnt/again' };
    assert.equal((await mount(body)).status, 200);
    const taken = await mount(body);
    assert.deepEqual([taken.status, taken.body['code']], [409, 'mount_path_taken']);
    // The youngest serves it. The server's record is then the same as that of one which died before it had asked for the mount.
    await ok('kill -9 $(pidof storemount | tr " " "\\n" | sort -n | tail -1)');
    await eventually('the mount made again', async () => {
      const { status, body: said } = await mount(body);
      assert.ok(status === 200 || said['code'] === 'mount_path_taken', JSON.stringify(said));
      return status === 200;
    });
    assert.equal(await ok('cat /mnt/again/outside.txt'), 'not below the prefix');
    assert.equal((await unmount('all')).status, 200);
  });

  test('are made and removed by rlp', async () => {
    const size = ['--cpu', '1', '--mem', '512', '--scratch', '128'];
    const command = ['busybox', '--', 'sh', '-c', 'cat /m/a.txt; echo from rlp > /m/rlp; echo x > /all/no'];
    const mounts = ['--mount', 'models:/m', '--mount', 'all:/all'];
    const ran = await rlp(['run', '--rm', ...size, ...mounts, ...command]);
    assert.deepEqual([ran.code, ran.stdout], [1, 'first']);
    assert.match(ran.stderr, /Read-only file system/);
    // The sandbox is gone, and what it had closed is in the bucket.
    assert.equal(await read('models/rlp'), 'from rlp\n');
    assert.equal(await output(['store', 'mount', id, 'all:/mnt/rlp:ro']), '/mnt/rlp\n');
    assert.equal(await output(['exec', id, '--', 'cat', '/mnt/rlp/outside.txt']), 'not below the prefix');
    assert.match(await output(['store', 'mounts', id]), /^\/mnt\/rlp +all +ro /m);
    assert.match((await rlp(['store', 'rm', 'all'])).stderr, /mounted/);
    assert.equal(await output(['store', 'unmount', id, 'all']), '/mnt/rlp\n');
    assert.doesNotMatch(await output(['store', 'mounts', id]), /mnt\/rlp/);
  });

  test('use rotated secrets without a remount', async () => {
    await secret('S3_KEY', 'wrong');
    await put('models/rotated', 'x');
    await eventually('the refusal of the wrong key', async () =>
      (await run('sleep 1; cat /mnt/models/rotated')).code !== 0 ? true : undefined,
    );
    await secret('S3_KEY', REAL_KEY);
    await eventually('the right key', async () =>
      (await run('sleep 1; cat /mnt/models/rotated')).code === 0 ? true : undefined,
    );
  });

  test('tell a wrong or cut object from a right one, and take up a new session token without a remount', async () => {
    const content = 'right '.repeat(50_000);
    const names = ['half', 'larger', 'busy', 'more', 'stall'];
    for (const name of names) await put(`models/${name}`, content);
    faults.objects.set('models/larger', { listed: content.length + 4096 });
    faults.objects.set('models/half', 'half');
    faults.objects.set('models/busy', { status: 503, code: 'SlowDown' });
    faults.objects.set('models/more', 'more');
    faults.objects.set('models/stall', 'stall');
    await eventually('all of them', async () =>
      (await run(`cd /mnt/models && ls ${names.join(' ')}`)).code === 0 ? true : undefined,
    );
    // Each has its end, in a file: the one that stalls is asked for again after half a minute of silence.
    await ok(
      `cd /mnt/models && for i in ${names.join(' ')}; do (cat $i > /tmp/$i; echo $? > /tmp/$i.code) > /dev/null 2>&1 & done`,
    );
    await eventually('the stall', () => Promise.resolve(faults.stalled.length > 0 ? true : undefined));
    assert.equal(await ok('cat /mnt/models/a.txt'), 'first');

    faults.token = 'first';
    assert.equal((await mount({ object_store: 'sts', mount_path: '/mnt/sts' })).status, 200);
    await ok('echo early > /mnt/sts/early');
    await eventually('an upload with the first token', async () =>
      (await read('sts/early')) === 'early\n' ? true : undefined,
    );
    // Opened while the first token is good: to open a file may read its folder, which the store refuses afterwards.
    await ok(
      '(echo late; while [ ! -e /tmp/go ]; do sleep 0.1; done) > /mnt/sts/late 2> /dev/null & until [ -s /mnt/sts/late ]; do sleep 0.1; done',
    );
    faults.token = 'second';
    await ok('touch /tmp/go');
    await put('sts/other', 'x');
    assert.notEqual((await run('cat /mnt/sts/other')).code, 0);
    assert.equal(await read('sts/late'), undefined);
    await secret('S3_TOKEN', 'second');
    await eventually('an upload with the second token', async () =>
      (await read('sts/late')) === 'late\n' ? true : undefined,
    );
    await eventually('a read with the second token', async () =>
      (await run('cat /mnt/sts/other')).out === 'x' ? true : undefined,
    );
    await eventually('the unmount', async () => ((await unmount('sts')).status === 200 ? true : undefined));

    for (const [name, isRight] of [
      ['half', false],
      ['larger', false],
      ['busy', false],
      ['more', true],
      ['stall', true],
    ] as const) {
      const code = await eventually(
        `the end of cat ${name}`,
        async () => {
          const { code: known, out } = await run(`cat /tmp/${name}.code`);
          return known === 0 && out !== '' ? out.trim() : undefined;
        },
        READ_END_MS,
      );
      assert.equal(code === '0', isRight, `${name}: ${code}`);
      if (isRight) assert.equal(await ok(`cat /tmp/${name}`), content);
    }
    faults.objects.clear();
    for (const name of ['half', 'larger', 'busy'])
      await eventually(`the right content of ${name}`, async () =>
        (await run(`cat /mnt/models/${name}`)).out === content ? true : undefined,
      );
  });

  test('are in a fork, too', async () => {
    await put('models/forked', 'for both');
    const { body } = await service.call<{ vm_id: string }>('POST', `/vms/${id}/fork`, {});
    const child = body.vm_id;
    await eventually('the fork', async () => {
      const { body: vm } = await service.call('GET', `/vms/${child}?wait=running&timeout_ms=60000`);
      return vm['status'] === 'running';
    });
    // Lists of the folder are cached for a while.
    for (const vm of [child, id])
      await eventually('the object', async () =>
        (await service.exec(vm, 'cat /mnt/models/forked')).result === 'for both' ? true : undefined,
      );
    await service.remove(child);
  });

  test('survive a full bucket, a server that answers everything with 503 for a while, a pause, and a stop', async () => {
    faults.objects.set('models/later', { status: 503, code: 'SlowDown' });
    faults.objects.set('models/full', { status: 507, code: 'InsufficientStorage' });
    faults.objects.set('models/quota', { status: 403, code: 'QuotaExceeded' });
    await ok('cd /mnt/models && for i in later full quota; do echo $i > $i; done');
    const refused = await unmount('models');
    assert.deepEqual(
      [refused.status, /3 of its files are not uploaded yet/.test(String(refused.body['error']))],
      [409, true],
      JSON.stringify(refused.body),
    );
    assert.equal(await ok('cd /mnt/models && cat later full quota'), 'later\nfull\nquota\n');
    await eventually('the reasons in the log', async () => {
      const { body: console } = await service.call<string>('GET', `/vms/${id}/logs`);
      for (const said of [/later.*(SlowDown|503)/, /full.*(InsufficientStorage|507)/, /quota.*(Quota|403)/])
        assert.match(JSON.stringify(console), said);
      return true;
    });
    faults.mode = 'busy';
    if (isNightly()) {
      await eventually('a list that fails', async () => (await run('ls /mnt/models/dir')).code !== 0);
      await sleep(BUSY_MS);
    }
    await change('pause', 'paused');
    assert.match(String((await mount({ object_store: 'all', mount_path: '/x' })).body['error']), /is paused/);
    await change('resume', 'running');
    assert.equal(await ok('echo alive'), 'alive\n');
    faults.mode = 'pass';
    faults.objects.clear();
    for (const key of ['later', 'full', 'quota'])
      await eventually(
        `the upload of ${key}`,
        async () => ((await read(`models/${key}`)) === `${key}\n` ? true : undefined),
        UPLOAD_MS,
      );
    await closedWhileBusy('last');
    await change('stop', 'stopped');
    await change('start', 'running');
    assert.equal(await ok('echo alive'), 'alive\n');
    faults.mode = 'pass';
    // What the stop did not wait for is uploaded now.
    await eventually('the last upload', async () => (await read('models/last')) === 'last\n', UPLOAD_MS);
    assert.equal(await ok('cat /mnt/models/last'), 'last\n');
    assert.deepEqual(await mountsOf(), ['models /mnt/models']);
  });

  test('of a server that does not respond hold up neither commands nor a pause and a stop', async () => {
    await put('models/slow', 'x');
    await put('models/cut', 'cut '.repeat(50_000));
    faults.objects.set('models/cut', 'stall');
    await eventually('what is read', async () =>
      (await run('cd /mnt/models && ls slow cut')).code === 0 ? true : undefined,
    );
    await ok('cat /mnt/models/cut > /dev/null 2>&1 &');
    await eventually('the stall', () =>
      Promise.resolve(faults.stalled.some((key) => key.endsWith('/cut')) ? true : undefined),
    );
    faults.mode = 'hang';
    await ok('(cat /mnt/models/slow > /dev/null 2>&1 &) ; sleep 1');
    assert.equal(await ok('echo alive'), 'alive\n');
    await change('pause', 'paused');
    await change('resume', 'running');
    assert.equal(await ok('echo alive'), 'alive\n');
    await change('stop', 'stopped');
    await change('start', 'running');
    assert.equal(await ok('echo alive'), 'alive\n');
    faults.mode = 'pass';
    await eventually('the recovery', async () =>
      (await run('cat /mnt/models/slow')).out === 'x' ? true : undefined,
    );
  });
});
