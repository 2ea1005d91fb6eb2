export class FleetTab { constructor() { this.host = document.createElement('div'); } refresh() {} close() {} }
