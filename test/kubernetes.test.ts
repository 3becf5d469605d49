/**
 * The Helm chart against an API server of Kubernetes. Its build took 39 minutes of two busy cores: in the nightly run, or alone with
 * `RELEAP_TEST_KUBERNETES=1`.
 */
import assert from 'node:assert/strict';
import { execFile, execFileSync } from 'node:child_process';
import { readFile, readdir } from 'node:fs/promises';
import path from 'node:path';
import { after, before, describe, it } from 'node:test';
import { promisify } from 'node:util';
import { isNightly } from '@releap/testing/repetitions';
import { KubeApiServer, type KubeObject, stubDefinition } from './support/kube-apiserver.ts';
import { kubernetesTools, type KubernetesTool } from './support/kubernetes-tools.ts';
import { withSchemas } from './support/kube-schemas.ts';

const DEPLOY = path.resolve(import.meta.dirname, '../deploy/helm');
const CHART = path.join(DEPLOY, 'releap');
const EXAMPLES = path.join(DEPLOY, 'examples');
const isAsked = isNightly() || process.env['RELEAP_TEST_KUBERNETES'] === '1';
/** Everything that the chart can make for control servers and gateways, beside what the example has. */
const ALL = {
  'control.autoscaling.enabled': 'true',
  'gateway.autoscaling.enabled': 'true',
  'metrics.enabled': 'true',
  'gatewayApi.enabled': 'true',
  'gatewayApi.parentRefs[0].name': 'public',
  'settings.RELEAP_LOG_LEVEL': 'debug',
  'control.settings.RELEAP_RATE_LIMIT_ORG': '1000000',
  'control.homeSizeLimit': '20Gi',
  'control.internalService.type': 'LoadBalancer',
  'control.internalService.loadBalancerSourceRanges[0]': '10.0.0.0/8',
  'networkPolicy.publicFrom[0].ipBlock.cidr': '0.0.0.0/0',
  'networkPolicy.egress[0].to[0].ipBlock.cidr': '0.0.0.0/0',
};
/** Of cert-manager, CloudNativePG, the Prometheus operator and the Gateway API. */
const FOREIGN: Parameters<typeof stubDefinition>[] = [
  ['cert-manager.io', 'v1', 'Certificate', 'certificates'],
  ['cert-manager.io', 'v1', 'ClusterIssuer', 'clusterissuers', 'Cluster'],
  ['postgresql.cnpg.io', 'v1', 'Cluster', 'clusters'],
  ['monitoring.coreos.com', 'v1', 'ServiceMonitor', 'servicemonitors'],
  ['monitoring.coreos.com', 'v1', 'PodMonitor', 'podmonitors'],
  ['gateway.networking.k8s.io', 'v1', 'HTTPRoute', 'httproutes'],
];

const documentsOf = (yaml: string): string[] =>
  yaml.split(/^---.*$/m).filter((text) => /^kind: /m.test(text));

describe('the Helm chart', {
  skip: !isAsked && 'builds Kubernetes: nightly, or with RELEAP_TEST_KUBERNETES=1',
}, () => {
  let tools: Record<KubernetesTool, string>;
  let api: KubeApiServer;
  const helm = async (...args: string[]): Promise<string> =>
    (await promisify(execFile)(tools.helm, args, { maxBuffer: 16 * 1024 * 1024 })).stdout;
  const template = async (
    values: string,
    set: Record<string, string> = {},
    namespace = 'releap',
  ): Promise<string[]> => {
    const more = Object.entries(set).flatMap(([name, value]) => ['--set', `${name}=${value}`]);
    const file = path.join(EXAMPLES, values);
    return documentsOf(
      await helm('template', 'releap', CHART, '-n', namespace, '--kube-version', '1.34', '-f', file, ...more),
    );
  };

  before(async () => {
    tools = await kubernetesTools();
    api = await KubeApiServer.start(tools);
    for (const definition of FOREIGN) await api.apply(stubDefinition(...definition));
    for (const manifest of documentsOf(await readFile(path.join(EXAMPLES, 'namespaces.yaml'), 'utf8')))
      await api.apply(manifest);
  });
  after(() => api?.[Symbol.asyncDispose]());

  it('passes helm lint, with the examples', async () => {
    for (const values of ['values.yaml', 'values-hosts.yaml'])
      assert.match(
        await helm('lint', '--strict', CHART, '-f', path.join(EXAMPLES, values)),
        /0 chart\(s\) failed/,
      );
  });

  it('is admitted by the API server, and a second time changes nothing', async () => {
    const releases = [
      ...(await template('values.yaml')),
      ...(await template('values.yaml', ALL)),
      ...(await template('values-hosts.yaml', {}, 'releap-hosts')),
    ];
    assert.ok(releases.length > 40, `${releases.length} objects`);
    for (const manifest of releases) await api.apply(manifest, { dryRun: true });
    const unknown =
      releases.find((text) => text.includes('policyTypes:'))?.replace('policyTypes:', 'policyTypos:') ?? '';
    await assert.rejects(api.apply(unknown, { dryRun: true }), /policyTypos/, 'unknown fields are refused');
    const all = [
      ...(await template('values.yaml', ALL)),
      ...(await template('values-hosts.yaml', {}, 'releap-hosts')),
    ];
    const first: KubeObject[] = [];
    for (const manifest of all) first.push(await api.apply(manifest));
    for (const [index, manifest] of all.entries()) {
      const { kind, metadata } = await api.apply(manifest);
      const before = first[index]?.metadata;
      assert.deepEqual(
        [kind, metadata.name, metadata.resourceVersion],
        [kind, before?.name, before?.resourceVersion],
      );
    }
  });

  it('makes pods that the pod security standard "restricted" admits, and the installer is not one of them', async () => {
    const podOf = (object: KubeObject): string => {
      const { template } = object.spec as { template: { metadata: object; spec: object } };
      const metadata = { ...template.metadata, name: object.metadata.name };
      return JSON.stringify({ apiVersion: 'v1', kind: 'Pod', metadata, spec: template.spec });
    };
    const workloads = async (values: string, namespace: string): Promise<KubeObject[]> => {
      const manifests = (await template(values, {}, namespace)).filter((text) =>
        /^kind: (Deployment|Job|DaemonSet)$/m.test(text),
      );
      return await Promise.all(manifests.map((manifest) => api.apply(manifest, { dryRun: true })));
    };
    const served = await workloads('values.yaml', 'releap');
    assert.deepEqual(served.map(({ kind }) => kind).sort(), ['Deployment', 'Deployment', 'Job']);
    for (const object of served) await api.apply(podOf(object), { namespace: 'releap', dryRun: true });
    const [installer] = await workloads('values-hosts.yaml', 'releap-hosts');
    assert.ok(installer);
    await api.apply(podOf(installer), { namespace: 'releap-hosts', dryRun: true });
    await assert.rejects(
      api.apply(podOf(installer), { namespace: 'releap', dryRun: true }),
      /violates PodSecurity/,
    );
  });

  it('and its examples conform to the schemas of the API server', async () => {
    const manifests = [...(await template('values.yaml', ALL)), ...(await template('values-hosts.yaml'))];
    const foreign = new Set<string>(FOREIGN.map(([, , kind]) => kind));
    const own = manifests.filter((text) => !foreign.has(/^kind: (\S+)$/m.exec(text)?.[1] ?? ''));
    await withSchemas(api, own, (folder, file) => {
      const location = path.join(folder, '{{.ResourceKind}}-{{.ResourceAPIVersion}}.json');
      const output = execFileSync(
        tools.kubeconform,
        ['-strict', '-summary', '-schema-location', location, file],
        {
          encoding: 'utf8',
        },
      );
      assert.match(output, new RegExp(`${own.length} resources found.*Invalid: 0, Errors: 0, Skipped: 0`));
    });
    for (const name of (await readdir(EXAMPLES)).filter(
      (one) => one.endsWith('.yaml') && !one.startsWith('values'),
    ))
      for (const manifest of documentsOf(await readFile(path.join(EXAMPLES, name), 'utf8')))
        await api.apply(manifest, { namespace: 'releap', dryRun: true });
    const secret = execFileSync('sh', [path.join(EXAMPLES, 'make-secrets.sh')], { encoding: 'utf8' });
    await api.apply(secret, { namespace: 'releap', dryRun: true });
  });

  it('refuses values that are wrong, and says which', async () => {
    const refused = async (set: Record<string, string>, why: RegExp): Promise<void> => {
      await assert.rejects(template('values.yaml', set), why);
    };
    await refused({ publicUrl: '' }, /publicUrl is needed: the https:\/\/ URL/);
    await refused({ publicUrl: 'http://api.example.org' }, /API keys would cross the network in plain text/);
    await refused({ 'control.replica': '3' }, /control.*replica/s);
    await refused({ 'control.replicas': 'three' }, /control.*replicas/s);
    await refused({ 'settings.RELEAP_KEY_FILE': '/x' }, /RELEAP_KEY_FILE/);
    await refused({ 'database.urlSecret.name': '' }, /database\.urlSecret\.name is needed/);
    await refused({ 'installer.enabled': 'true' }, /installer\.package\.sha256 is needed/);
    await refused({ 'control.enabled': 'false' }, /gateway\.controlUrl is needed/);
  });
});
