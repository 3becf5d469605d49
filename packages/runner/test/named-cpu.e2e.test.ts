import assert from 'node:assert/strict';
import { it } from 'node:test';
import { cpuModel, DEVICE_MODEL } from '../src/vmm/qemu/device-model.ts';
import { checkCpuModel, cpuDefinitions, namedCpu } from '../src/vmm/qemu/named-cpu.ts';
import { unpackedVmm } from '../src/vmm/qemu/vmm-store.ts';
import { BUILD_DIR } from './support/machines.ts';

const definitions = async () => {
  const vmm = await unpackedVmm(BUILD_DIR);
  assert.ok(vmm, 'there is no VMM: run the set-up first (npm test)');
  return await cpuDefinitions(vmm, 'tcg');
};

it('a named processor is one that the VMM has, with its version', async () => {
  const all = await definitions();
  // Of 2008: the emulator has all of it.
  checkCpuModel('Nehalem-v1', all);
  assert.throws(() => checkCpuModel('Nehalem', all), /depends on the version of QEMU; use Nehalem-v\d+$/);
  assert.throws(() => checkCpuModel('Nehalem-v99', all), /no such model. It has .*, Nehalem-v1, /);
});

it('a host that lacks features of the processor names them', async () => {
  const all = await definitions();
  // The emulator has no 512-bit vectors.
  assert.throws(
    () => checkCpuModel('Cascadelake-Server-v5', all),
    /^Error: RELEAP_CPU_MODEL=Cascadelake-Server-v5: this host lacks .*avx512f.* or host$/,
  );
});

it('what no guest has is not missing', () => {
  const lacks = (...features: string[]) => [{ name: 'Some-v1', 'unavailable-features': features }];
  checkCpuModel('Some-v1', lacks('vmx', 'vmx-ept', 'svm', 'la57'));
  assert.throws(() => checkCpuModel('Some-v1', lacks('svm', 'vmxnet')), /lacks vmxnet\./);
});

it('guests see a named processor under KVM, and nothing that its name does not say', async () => {
  const cpu = await namedCpu('EPYC-Milan-v2');
  assert.match(cpu.identity, /^EPYC-Milan-v2\/\w+\/\d+$/);
  const model = { deviceModel: DEVICE_MODEL, cpu };
  assert.equal(
    cpuModel('kvm', model),
    'EPYC-Milan-v2,enforce=on,tsc-deadline=on,vmx=off,svm=off,pmu=off,la57=off',
  );
  assert.equal(cpuModel('tcg', model), cpuModel('tcg', { deviceModel: DEVICE_MODEL }));
});
