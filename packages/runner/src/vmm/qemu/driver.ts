import type { VmmDriver, VmmVersions } from '../driver.ts';
import { bootUnderKvm } from './boot-under-kvm.ts';
import { cpuModel, DEVICE_MODEL, deviceModel, isKnownDeviceModel } from './device-model.ts';
import { kernelAppend } from './kernel-append.ts';
import { checkedCpu } from './named-cpu.ts';
import { QemuVm } from './vm.ts';

/** @param vmms builds of QEMU; `VmmStore.open` finds those of a service */
export function qemuDriver(vmms: VmmVersions): VmmDriver {
  return {
    vmms,
    nameOf: (version) => `QEMU ${version}`,
    deviceModel: DEVICE_MODEL,
    isKnownDeviceModel,
    machineType: (version) => deviceModel(version).machineType,
    cpuModel,
    kernelAppend,
    namedCpu: async (name, log) => await checkedCpu(vmms.newest, name, log),
    bootUnderKvm: async (options) => await bootUnderKvm(vmms.newest, options),
    start: async (options) => await QemuVm.start(options),
    adopt: async (options) => await QemuVm.adopt(options),
  };
}
