import assert from 'node:assert/strict';
import { link, mkdir, mkdtemp, rm, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { checkCgroup } from '../src/doctor/cgroup.ts';
import { checkClock } from '../src/doctor/clock.ts';
import { checkImageCache } from '../src/doctor/image-cache.ts';
import { checkKvmHost } from '../src/doctor/kvm-host.ts';
import { checkKernel } from '../src/doctor/machine.ts';
import { checkMemoryCopies } from '../src/doctor/memory-copies.ts';
import { checkObjectStores } from '../src/doctor/object-stores.ts';
import { checkPreviewCertificate } from '../src/doctor/preview-certificate.ts';

test('a kernel without mount_setattr is named as missing, with the version that has it', () => {
  for (const version of ['4.19.0-27-amd64', '5.11.22', '5.4.0-200-generic']) {
    const { status, detail } = checkKernel(version);
    assert.equal(status, 'missing');
    assert.match(detail, /Linux 5\.12 or newer/);
    assert.ok(detail.includes(version));
  }
  for (const version of ['5.12.0', '5.15.0-1', '6.1.0-28-amd64', '10.0.0'])
    assert.equal(checkKernel(version).status, 'ok', version);
});

test('settings of KVM are shown, with what to change', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'rlp-doctor-kvm-'));
  const places = { device: join(folder, 'device'), modules: folder, cpuinfo: join(folder, 'cpuinfo') };
  const set = async (module: string, name: string, value: string): Promise<void> => {
    await mkdir(join(folder, module, 'parameters'), { recursive: true });
    await writeFile(join(folder, module, 'parameters', name), `${value}\n`);
  };
  const found = (): Record<string, string> =>
    Object.fromEntries(checkKvmHost(places).map(({ id, status, detail }) => [id, `${status} ${detail}`]));
  try {
    assert.deepEqual(checkKvmHost(places), []);
    await writeFile(places.device, '');
    assert.deepEqual(found(), { 'kvm-settings': 'ok not readable' });
    await set('kvm', 'halt_poll_ns', '200000');
    await set('kvm', 'nx_huge_pages', 'N');
    assert.match(
      found()['kvm-settings'] ?? '',
      /^ok kvm\.halt_poll_ns=200000, kvm\.nx_huge_pages=N; .*halt_poll_ns=50000/,
    );
    await set('kvm', 'halt_poll_ns', '0');
    assert.equal(found()['kvm-settings'], 'ok kvm.halt_poll_ns=0, kvm.nx_huge_pages=N');
    for (const off of ['0', 'N']) {
      await set('kvm_amd', 'nested', off);
      assert.equal('nesting' in found(), false);
    }
    for (const on of ['1', 'Y']) {
      await set('kvm_intel', 'nested', on);
      assert.match(found()['nesting'] ?? '', /^warn .*options kvm_intel nested=0/);
    }
    await writeFile(places.cpuinfo, 'flags\t\t: fpu svm\n');
    assert.equal('virtualised-host' in found(), false);
    await writeFile(places.cpuinfo, 'flags\t\t: fpu svm hypervisor\n');
    assert.match(found()['virtualised-host'] ?? '', /^warn .*nested/);
  } finally {
    await rm(folder, { recursive: true });
  }
});

test('how the memory of sandboxes is copied is told, with what a kernel without tracking costs', async () => {
  const root = await mkdtemp(join(tmpdir(), 'rlp-doctor-copies-'));
  const { signal } = new AbortController();
  const found = async (script: string): Promise<string> => {
    await mkdir(join(root, 'build/host'), { recursive: true });
    await writeFile(join(root, 'build/host/hostd'), `#!/bin/sh\n${script}\n`, { mode: 0o755 });
    const { status, detail } = await checkMemoryCopies(root, signal);
    return `${status} ${detail}`;
  };
  try {
    assert.equal((await checkMemoryCopies(root, signal)).status, 'warn');
    assert.match(await found('[ "$1" = probe-precopy ] && echo tracked'), /^ok in rounds/);
    for (const way of ['marked', 'untracked'])
      assert.match(await found(`echo ${way}`), /^warn .*frozen.*Linux 6\.7/);
    assert.match(
      await found('echo ptrace: not permitted >&2; exit 1'),
      /^warn not known: ptrace: not permitted/,
    );
  } finally {
    await rm(root, { recursive: true });
  }
});

test('a clock that nothing keeps right is a warning, with what depends on it', async () => {
  const root = await mkdtemp(join(tmpdir(), 'rlp-doctor-clock-'));
  const { signal } = new AbortController();
  try {
    const before = await checkClock(root, signal);
    assert.deepEqual([before.id, before.status], ['clock', 'warn']);
    const says = async (script: string): Promise<void> => {
      await mkdir(join(root, 'build/host'), { recursive: true });
      await writeFile(join(root, 'build/host/hostd'), `#!/bin/sh\n${script}\n`, { mode: 0o755 });
    };
    await says('echo synchronized 16500');
    const ok = await checkClock(root, signal);
    assert.deepEqual([ok.status, ok.detail], ['ok', 'synchronized, wrong by 17 ms at most']);
    await says('echo unsynchronized 16000000');
    const off = await checkClock(root, signal);
    assert.equal(off.status, 'warn');
    assert.match(off.detail, /not synchronized.*chrony/);
    await says('echo adjtimex: operation not permitted >&2; exit 1');
    assert.match((await checkClock(root, signal)).detail, /not known: adjtimex: operation not permitted/);
  } finally {
    await rm(root, { recursive: true, force: true });
  }
});

test('what mounts of object stores need is a warning until set-up has made it', async () => {
  const root = await mkdtemp(join(tmpdir(), 'rlp-doctor-stores-'));
  try {
    const before = checkObjectStores(root);
    assert.equal(before.status, 'warn');
    assert.match(before.detail, /after the first start, or run `npm run setup`/);
    await mkdir(join(root, 'build/guest'), { recursive: true });
    await writeFile(join(root, 'build/guest/storemount'), '');
    assert.equal(checkObjectStores(root).status, 'ok');
  } finally {
    await rm(root, { recursive: true });
  }
});

test('the image cache is shown with its size and its limits, once it holds something', async () => {
  const cache = await mkdtemp(join(tmpdir(), 'rlp-doctor-cache-'));
  try {
    assert.deepEqual(await checkImageCache(cache, {}), []);
    const file = async (path: string, mib: number): Promise<void> => {
      await mkdir(join(cache, 'images', path, '..'), { recursive: true });
      await writeFile(join(cache, 'images', path), '');
      await truncate(join(cache, 'images', path), mib * 2 ** 20);
    };
    await file('sha256-aa/root.squashfs', 1024);
    await file('sha256-bb/root.squashfs', 512);
    await file('layers/cc.tar', 256);
    await file('layers/ee.tar', 1024);
    await file('sha256-cc/root.head', 512);
    // A layer of an image, which counts with it.
    await link(join(cache, 'images/layers/ee.tar'), join(cache, 'images/sha256-cc/layer-0.tar'));
    await file('layers/dd.json', 4096);
    const [check] = await checkImageCache(cache, { RELEAP_LAYER_CACHE_MIB: '2048' });
    assert.equal(
      check?.detail,
      `3 images of 3.0 GiB (limit 64.0 GiB), 2 layers of 0.3 GiB (limit 2.0 GiB) in ${join(cache, 'images')}`,
    );
  } finally {
    await rm(cache, { recursive: true, force: true });
  }
});

test('the certificate of previews is shown with its end, and a problem or an end that is near is a warning', async () => {
  const home = await mkdtemp(join(tmpdir(), 'rlp-doctor-certificate-'));
  try {
    assert.deepEqual(await checkPreviewCertificate(home), []);
    await mkdir(join(home, 'certificates'));
    const look = async (status: object, now: string): Promise<string> => {
      const common = { source: 'acme', domain: 'preview.test', failures: 0 };
      await writeFile(join(home, 'certificates/previews.json'), JSON.stringify({ ...common, ...status }));
      const [check] = await checkPreviewCertificate(home, new Date(now));
      return `${check?.status} ${check?.detail}`;
    };
    const certificate = { issuer: 'CN=x', fingerprint: 'AA', not_after: '2030-03-31T00:00:00.000Z' };
    const renewed = { certificate, renew_at: '2030-03-01T00:00:00.000Z' };
    const previews = 'previews below preview.test (acme):';
    assert.equal(
      await look(renewed, '2030-01-01'),
      `ok ${previews} expires 2030-03-31, renewed from 2030-03-01`,
    );
    assert.match(await look(renewed, '2030-03-30'), /^warn .* expires 2030-03-31/);
    assert.match(await look(renewed, '2030-04-01'), /^warn .* expired 2030-03-31/);
    const problem = { problem: 'the hook failed' };
    assert.equal(
      await look({ ...renewed, ...problem }, '2030-01-01'),
      `warn ${previews} expires 2030-03-31; the hook failed`,
    );
    assert.equal(
      await look(problem, '2030-01-01'),
      `warn ${previews} there is no certificate yet; the hook failed`,
    );
  } finally {
    await rm(home, { recursive: true, force: true });
  }
});

test('control groups: version 2 is needed for all limits, and what a host lacks is named', async () => {
  const root = await mkdtemp(join(tmpdir(), 'rlp-doctor-cgroup-'));
  const withControllers = async (controllers: string): Promise<ReturnType<typeof checkCgroup>> => {
    await writeFile(join(root, 'cgroup.controllers'), `${controllers}\n`);
    return checkCgroup(`cgroup2 ${root} cgroup2 rw 0 0\n`, root);
  };
  try {
    assert.equal((await withControllers('cpuset cpu io memory hugetlb pids')).status, 'ok');
    const withoutIo = await withControllers('cpu memory pids');
    assert.equal(withoutIo.status, 'warn');
    assert.match(withoutIo.detail, /version 2, without the controller io/);
    const less = await withControllers('io memory');
    assert.equal(less.status, 'missing');
    assert.match(less.detail, /cpu and pids/);
    const former = checkCgroup(
      `c ${root} cgroup rw,cpu,memory,pids 0 0\ncgroup2 /elsewhere cgroup2 rw 0 0\n`,
      root,
    );
    assert.equal(former.status, 'warn');
    assert.match(former.detail, /version 1.*swapped/);
    assert.equal(checkCgroup('', root).status, 'missing');
  } finally {
    await rm(root, { recursive: true });
  }
});
