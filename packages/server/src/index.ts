export { type Config, ConfigError, loadConfig } from './config/config.ts';
export { type BootstrapFile } from './bootstrap.ts';
