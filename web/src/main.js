// Starts the page.
import { mount } from 'svelte';
import App from './components/App.svelte';
import './styles/base.css';
import './styles/forms.css';
import './styles/layout.css';
import './styles/thread.css';

mount(App, { target: document.getElementById('app') });
