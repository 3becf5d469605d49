/** Helm, kubeconform, etcd and kube-apiserver, built from their Go modules: test/kubernetes-tools/go.mod has the versions. */
import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { mkdir, readFile, rename } from 'node:fs/promises';
import path from 'node:path';
import { promisify } from 'node:util';
import { TEST_CACHE } from '@releap/testing/test-cache';

const MODULE = path.resolve(import.meta.dirname, '../kubernetes-tools');
const PACKAGES = {
  helm: 'helm.sh/helm/v3/cmd/helm',
  kubeconform: 'github.com/yannh/kubeconform/cmd/kubeconform',
  etcd: 'go.etcd.io/etcd/server/v3',
  'kube-apiserver': 'k8s.io/kubernetes/cmd/kube-apiserver',
} as const;

export type KubernetesTool = keyof typeof PACKAGES;

/**
 * Builds those that are not there yet, one package at a time: on two busy cores kube-apiserver took 24 minutes, and Helm 13.
 * @returns their paths
 */
export async function kubernetesTools(): Promise<Record<KubernetesTool, string>> {
  const sums = await Promise.all(['go.mod', 'go.sum'].map((name) => readFile(path.join(MODULE, name))));
  const version = createHash('sha256').update(Buffer.concat(sums)).digest('hex').slice(0, 12);
  const folder = path.join(TEST_CACHE, 'kubernetes-tools', version);
  await mkdir(folder, { recursive: true });
  const found: Partial<Record<KubernetesTool, string>> = {};
  for (const [name, source] of Object.entries(PACKAGES) as [KubernetesTool, string][]) {
    const program = path.join(folder, name);
    found[name] = program;
    if (existsSync(program)) continue;
    const partial = `${program}.${process.pid}`;
    const args = ['-n', '19', 'go', 'build', '-trimpath', '-ldflags=-s -w', '-o', partial, source];
    await promisify(execFile)('nice', args, {
      cwd: MODULE,
      env: { ...process.env, CGO_ENABLED: '0', GOFLAGS: '-p=1 -mod=readonly' },
      maxBuffer: 64 * 1024 * 1024,
    });
    await rename(partial, program);
  }
  return found as Record<KubernetesTool, string>;
}
